"""The error of Nyström attention, split into its causes.

Nyström attention replaces S = softmax(Q Kᵀ / √H) by F Z B: F is the attention of the
queries to M landmarks, B that of the landmarks to the keys, A that of landmarks to
landmarks, and Z an approximation of A⁺. Three steps lead from S to F Z B, and each is
more restricted than the one before:

    rank          the matrix of rank M that is nearest to S, by singular values
    landmarks     F X B with the X that brings it nearest to S, X = F⁺ S B⁺
    inverse       F Z B; beside it F A⁺ B with the exact inverse, and F B without one

The first step whose error is too large says what a head needs: another method, other
landmarks, or another inverse. Errors are those of the output S V. The first two steps
are the best for S itself, and so only nearly the best for the output.

Beside these steps stand landmarks by k-means, with the iterated inverse, and random
methods, with several draws: landmarks at random tokens;
the standard Nyström method, which samples S after the softmax; and Performer with as
many features.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tqdm import tqdm

from nystromformer.experiments.approximation import columns
from nystromformer.experiments.approximation.measurements import (
    NUM_PINV_ITERS,
    fresh_output,
    relative_error,
    relative_norm,
)
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.factors import nystrom_kernels, softmax_matrix, standard_nystrom
from nystromformer.pinv import exact_pinv, iterative_pinv

# Matrices up to this length are decomposed; of longer ones, for which this takes
# minutes, the largest singular vectors are iterated.
LONGEST_DECOMPOSED = 1_024
# Of the iteration: its steps, and its vectors beyond the wanted ones.
SUBSPACE_STEPS = 4
SPARE_VECTORS = 16


def largest_singular_vectors(matrix: jax.Array, count: int) -> Any:
    """Computes the largest singular values of a matrix and their vectors.

    Of a matrix longer than LONGEST_DECOMPOSED they come from a random subspace after a
    few steps of the power iteration (Halko et al., 2011, algorithm 4.4). The matrix of
    these vectors is then nearly the nearest of its rank.

    Args:
      matrix: [L, L].
      count: how many are needed.

    Returns:
      Vectors on the left [L, R], values [R] and vectors on the right [R, L], the
      largest first; R ≥ count.
    """
    length = len(matrix)
    if length <= LONGEST_DECOMPOSED:
        return jnp.linalg.svd(matrix, full_matrices=False)

    num_vectors = min(length, count + SPARE_VECTORS)
    start = jax.random.normal(jax.random.key(0), (length, num_vectors), matrix.dtype)
    basis, _ = jnp.linalg.qr(matrix @ start)
    for _ in range(SUBSPACE_STEPS):
        other_basis, _ = jnp.linalg.qr(matrix.T @ basis)
        basis, _ = jnp.linalg.qr(matrix @ other_basis)
    left, singular_values, right = jnp.linalg.svd(basis.T @ matrix, full_matrices=False)
    return basis @ left, singular_values, right


@functools.partial(jax.jit, static_argnames=("counts", "num_pinv_iters"))
def split_errors(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    counts: tuple[int, ...],
    num_pinv_iters: int = NUM_PINV_ITERS,
) -> dict[str, jax.Array]:
    """Splits the error of segment means with some numbers of landmarks.

    Args:
      query, key, value: [L, N, H], zero where the mask is False.
      mask: [L] bool, True = valid. More tokens must be valid than the largest count.
      counts: C numbers of landmarks M.
      num_pinv_iters: iterations that compute Z.

    Returns:
      Arrays [C, N] by name: for each deterministic method ‖ŜV − SV‖ / ‖SV‖, and for Z
        inverse_error: ‖Z − A⁺‖ / ‖A⁺‖.
        inverse_residual: ‖A Z A − A‖ / ‖A‖, which is 0 for any generalised inverse.
      All norms are Frobenius'.
    """

    # Under vmap one head after another, as in `exact_pinv`.
    decompose = jax.custom_batching.sequential_vmap(
        functools.partial(largest_singular_vectors, count=max(counts))
    )

    def split_head(query: Any, key: Any, value: Any) -> dict[str, jax.Array]:
        matrix = jnp.where(mask[:, None], softmax_matrix(query, key, mask), 0)
        exact = matrix @ value
        left, singular_values, right = decompose(matrix)

        def error(approximation: jax.Array) -> jax.Array:
            return relative_error(approximation, exact, mask)

        rows = []
        for count in counts:
            f, a, b = nystrom_kernels(query, key, mask, num_landmarks=count)
            f = jnp.where(mask[:, None], f, 0)
            z = iterative_pinv(a, num_pinv_iters)
            inverse = exact_pinv(a)
            middle = exact_pinv(f) @ matrix @ exact_pinv(b)
            truncated = left[:, :count] * singular_values[None, :count] @ right[:count]
            k_means_f, k_means_a, k_means_b = nystrom_kernels(
                query, key, mask, num_landmarks=count, landmarks="kmeans"
            )
            k_means_z = iterative_pinv(k_means_a, num_pinv_iters)
            rows.append(
                {
                    columns.BEST_RANK: error(truncated @ value),
                    columns.BEST_MIDDLE: error(f @ middle @ (b @ value)),
                    columns.NYSTROM: error(f @ z @ (b @ value)),
                    columns.EXACT_INVERSE: error(f @ inverse @ (b @ value)),
                    columns.NO_INVERSE: error(f @ (b @ value)),
                    columns.K_MEANS: error(
                        k_means_f @ (k_means_z @ (k_means_b @ value))
                    ),
                    columns.INVERSE_ERROR: relative_norm(z - inverse, inverse),
                    columns.INVERSE_RESIDUAL: relative_norm(a @ z @ a - a, a),
                }
            )
        return {name: jnp.stack([row[name] for row in rows]) for name in rows[0]}

    return jax.vmap(split_head, in_axes=1, out_axes=1)(query, key, value)


@functools.partial(jax.jit, static_argnames=("count", "num_pinv_iters"))
def random_method_errors(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    seed: Any,
    *,
    count: int,
    num_pinv_iters: int = NUM_PINV_ITERS,
) -> dict[str, jax.Array]:
    """Computes ‖ŜV − SV‖ / ‖SV‖ of the random methods, for one draw.

    Args:
      query, key, value, mask: as for `split_errors`.
      seed: the seed of the landmarks and of Performer's features.
      count: the number of landmarks, sampled tokens and features.
      num_pinv_iters: iterations that compute Z, and the iterated inverse of the
        standard method.

    Returns:
      An array [N] by the name of the method.
    """

    def outputs_of_head(query: Any, key: Any, value: Any) -> dict[str, jax.Array]:
        f, a, b = nystrom_kernels(
            query,
            key,
            mask,
            num_landmarks=count,
            landmarks="random",
            landmark_seed=seed,
        )
        z = iterative_pinv(a, num_pinv_iters)
        standard = functools.partial(
            standard_nystrom, query, key, mask, num_landmarks=count, seed=seed
        )
        iterated = standard(pinv="iterative", num_pinv_iters=num_pinv_iters)
        return {
            "exact": softmax_matrix(query, key, mask) @ value,
            columns.RANDOM_LANDMARKS: f @ (z @ (b @ value)),
            columns.STANDARD: standard() @ value,
            columns.STANDARD_ITERATED: iterated @ value,
        }

    outputs = jax.vmap(outputs_of_head, in_axes=1, out_axes=1)(query, key, value)
    outputs[columns.PERFORMER] = fresh_output(
        query, key, value, mask, attention="performer", size=count, seed=seed
    )

    exact = outputs.pop("exact")
    return {
        method: relative_error(output, exact, mask)
        for method, output in outputs.items()
    }


def measure_causes(
    layers: Sequence[AttentionInputs],
    counts: Sequence[int],
    *,
    num_pinv_iters: int = NUM_PINV_ITERS,
    num_draws: int = 4,
) -> pd.DataFrame:
    """Measures the error of every method in every head.

    Sequences of no more tokens than landmarks, where Nyström attention is exact, are
    left out.

    Args:
      layers: the inputs of the attention of each layer.
      counts: numbers of landmarks.
      num_pinv_iters: iterations that compute Z.
      num_draws: draws of each random method.

    Returns:
      A row for each layer, example, head, num_landmarks and method, and for the random
      methods for each draw, with its `error`. Rows of other methods have no `draw`;
      those of "nystrom" alone have `inverse_error` and `inverse_residual`.
    """
    rows = []
    for layer, example, arrays in tqdm(list(_examples(layers)), disable=None):
        mask = arrays[-1]
        smaller_counts = tuple(count for count in counts if count < mask.sum())
        if not smaller_counts:
            continue

        row_key = {"layer": layer, "example": example}
        errors = split_errors(
            *arrays, counts=smaller_counts, num_pinv_iters=num_pinv_iters
        )
        rows += _split_rows(row_key, smaller_counts, jax.device_get(errors))
        for count, draw in itertools.product(smaller_counts, range(num_draws)):
            errors_of_draw = random_method_errors(
                *arrays, draw, count=count, num_pinv_iters=num_pinv_iters
            )
            rows += _random_method_rows(
                row_key, count, draw, jax.device_get(errors_of_draw)
            )
    return pd.DataFrame(rows)


def _examples(
    layers: Sequence[AttentionInputs],
) -> Iterator[tuple[int, int, list[np.ndarray]]]:
    """Layer, example, and its query, key, value [L, N, H] and mask [L]."""
    for layer, inputs in enumerate(layers):
        for example in range(len(inputs.mask)):
            yield layer, example, inputs.example(example)


def _random_method_rows(
    row_key: dict[str, int], count: int, draw: int, errors: dict[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """The rows of `random_method_errors`' arrays [N]."""
    for method in columns.RANDOM_METHODS:
        for head, error in enumerate(errors[method]):
            yield {
                **row_key,
                "head": head,
                "num_landmarks": count,
                "method": method,
                "draw": draw,
                "error": error,
            }


def _split_rows(
    row_key: dict[str, int], counts: Sequence[int], errors: dict[str, np.ndarray]
) -> Iterator[dict[str, Any]]:
    """The rows of `split_errors`' arrays [C, N]."""
    for method in columns.DETERMINISTIC_METHODS:
        for (index, head), error in np.ndenumerate(errors[method]):
            row = {
                **row_key,
                "head": head,
                "num_landmarks": counts[index],
                "method": method,
                "error": error,
            }
            if method == columns.NYSTROM:
                for name in (columns.INVERSE_ERROR, columns.INVERSE_RESIDUAL):
                    row[name] = errors[name][index, head]
            yield row


def spread_of_draws(errors: pd.DataFrame) -> pd.DataFrame:
    """Compares the draws of each random method.

    Args:
      errors: the rows of `measure_causes`.

    Returns:
      A row for each layer, head and number of landmarks, and a column for each method:
      the largest error of the draws over the smallest, the median over examples.
    """
    draws = errors[errors["method"].isin(columns.RANDOM_METHODS)]
    keys = [*columns.INDEX_COLUMNS, "method"]
    errors_of_draws = draws.groupby([*keys, "example"])["error"]
    ratios = errors_of_draws.max() / errors_of_draws.min()
    medians = ratios.groupby(keys).median().unstack()
    return medians.rename(columns=columns.spread_of)
