"""How far Nyström attention is from exact attention, in float64, over valid tokens.

Where no more tokens than landmarks are valid the method is exact by construction: those
sequences are left out.

Letters: B examples, L length, N heads, H head dim, M landmarks.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.lab.study.capture import Layer
from nystromformer.nystrom import iterative_pinv
from nystromformer.study import (
    inverse_by,
    nystrom_kernels,
    nystrom_rows,
    softmax_matrix,
)

ALL = slice(None)
LANDMARKS = ("segment_means", "random", "kmeans")  # of the supplement's Fig. 1
Row = dict[str, Any]
Measure = Callable[..., dict[str, jax.Array]]


def output_error(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, **options: Any
) -> jax.Array:
    """‖ŜV − SV‖ / ‖SV‖ (Frobenius) of one head [L, H], over the rows of mask [L]."""
    exact = softmax_matrix(query, key, mask) @ value
    found = nystrom_rows(query, key, ALL, mask, **options) @ value
    keep = mask[:, None]
    distance = jnp.linalg.norm(jnp.where(keep, found - exact, 0))
    return distance / jnp.linalg.norm(jnp.where(keep, exact, 0))


def error_and_bound(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    num_landmarks: int,
    num_pinv_iters: int,
) -> tuple[jax.Array, jax.Array]:
    """‖SV − ŜV‖∞ and its bound (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, Proposition 1.

    ‖·‖∞ is the largest row sum of absolute values.
    """
    sizes = {"num_landmarks": num_landmarks, "num_pinv_iters": num_pinv_iters}
    found = nystrom_rows(query, key, ALL, mask, **sizes) @ value
    difference = softmax_matrix(query, key, mask) @ value - found
    _, a, _ = nystrom_kernels(query, key, mask, num_landmarks=num_landmarks)
    inverse = jnp.linalg.pinv(a)
    z = iterative_pinv(a, num_pinv_iters)
    factor = 1 + _norm_inf(inverse) + _norm_inf(inverse - z)
    keep = mask[:, None]
    error = _norm_inf(jnp.where(keep, difference, 0))
    return error, factor * _norm_inf(jnp.where(keep, value, 0))


def residual(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array,
    *,
    num_landmarks: int,
    num_pinv_iters: int = 6,
    inverse: str = "iterative",
) -> jax.Array:
    """‖A Z A − A‖ / ‖A‖ (Frobenius) of one head: how far Z is from an inverse."""
    _, a, _ = nystrom_kernels(query, key, mask, num_landmarks=num_landmarks)
    z = inverse_by(inverse)(a, num_pinv_iters)
    return jnp.linalg.norm(a @ z @ a - a) / jnp.linalg.norm(a)


def landmark_rows(
    layers: Sequence[Layer], counts: Sequence[int], num_pinv_iters: int
) -> list[Row]:
    """Errors against M, for each choice of landmarks (supplement, Figs. 1-2)."""

    def measure(*head: jax.Array, **options: Any) -> dict[str, jax.Array]:
        error = output_error(*head, **options, num_pinv_iters=num_pinv_iters)
        return {"error": error}

    rows = []
    for choice in LANDMARKS:
        for count in counts:
            rows += _rows(layers, measure, landmarks=choice, num_landmarks=count)
    return rows


def iteration_rows(
    layers: Sequence[Layer], counts: Sequence[int], iterations: Sequence[int]
) -> list[Row]:
    """Errors against iterations, and with LAPACK's inverse (supplement, Figs. 3-4)."""

    def measure(
        query: jax.Array, key: jax.Array, *rest: jax.Array, **options: Any
    ) -> dict[str, jax.Array]:
        return {
            "error": output_error(query, key, *rest, **options),
            "residual": residual(query, key, rest[1], **options),
        }

    rows = []
    for count in counts:
        for iters in iterations:
            options = {"inverse": "iterative", "num_pinv_iters": iters}
            rows += _rows(layers, measure, num_landmarks=count, **options)
        options = {"inverse": "exact", "num_pinv_iters": 0}
        rows += _rows(layers, measure, num_landmarks=count, **options)
    return rows


def bound_rows(
    layers: Sequence[Layer], counts: Sequence[int], num_pinv_iters: int
) -> list[Row]:
    """Error and bound of Proposition 1 against M."""

    def measure(*head: jax.Array, **options: Any) -> dict[str, jax.Array]:
        error, bound = error_and_bound(*head, **options)
        return {"error": error, "bound": bound}

    rows = []
    for count in counts:
        options = {"num_landmarks": count, "num_pinv_iters": num_pinv_iters}
        rows += _rows(layers, measure, **options)
    return rows


def spectrum_rows(layers: Sequence[Layer]) -> list[Row]:
    """Singular values of S, the largest first, as shares of the largest."""
    exact = _over_heads(lambda query, key, _, mask: softmax_matrix(query, key, mask))
    rows = []
    for i, layer in enumerate(layers):
        for example, keep in enumerate(layer.mask):
            for n, matrix in enumerate(np.asarray(exact(*_example(layer, example)))):
                values = np.linalg.svd(matrix[keep][:, keep], compute_uv=False)
                where = {"layer": i, "head": n, "example": example}
                for rank, value in enumerate((values / values[0]).tolist(), 1):
                    rows.append({**where, "index": rank, "singular_value": value})
    return rows


def matrices(
    layers: Sequence[Layer], example: int, variants: Sequence[dict[str, Any]]
) -> tuple[list[list[np.ndarray]], list[Row]]:
    """S and each Ŝ of every head of one example, over its valid tokens.

    Args:
      layers: of all examples.
      example: which.
      variants: options of `nystrom_rows`, one Ŝ each.

    Returns:
      For each head S and the Ŝ [n, n], and for each Ŝ a row with its relative error.
    """
    functions = [
        lambda query, key, _, mask: softmax_matrix(query, key, mask),
        *(
            lambda query, key, _, mask, x=options: nystrom_rows(
                query, key, ALL, mask, **x
            )
            for options in variants
        ),
    ]
    compiled = [_over_heads(function) for function in functions]
    pictures, rows = [], []
    for i, layer in enumerate(layers):
        keep = layer.mask[example]
        heads = zip(
            *(np.asarray(f(*_example(layer, example))) for f in compiled), strict=True
        )
        for n, found in enumerate(heads):
            exact, *others = (matrix[keep][:, keep] for matrix in found)
            pictures.append([exact, *others])
            for options, matrix in zip(variants, others, strict=True):
                error = np.linalg.norm(matrix - exact) / np.linalg.norm(exact)
                where = {"layer": i, "head": n, "example": example}
                rows.append({**where, **options, "error": float(error)})
    return pictures, rows


def _norm_inf(matrix: jax.Array) -> jax.Array:
    return jnp.abs(matrix).sum(-1).max()


def _over_heads(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of query, key, value [L, H] and mask [L], for [L, N, H] at once."""
    return jax.jit(jax.vmap(function, in_axes=(1, 1, 1, None)))


def _example(layer: Layer, example: int) -> list[jax.Array]:
    """Query, key, value [L, N, H] and mask [L]; zero where the mask is False."""
    mask = layer.mask[example]
    arrays = (x[example] for x in (layer.query, layer.key, layer.value))
    zeroed = (np.where(mask[:, None, None], x, 0) for x in arrays)
    return [*map(jnp.asarray, zeroed), jnp.asarray(mask)]


def _rows(layers: Sequence[Layer], measure: Measure, **options: Any) -> list[Row]:
    """What is measured of every head with more valid tokens than landmarks."""
    compiled = _over_heads(lambda *head: measure(*head, **options))
    rows = []
    for i, layer in enumerate(layers):
        for example, keep in enumerate(layer.mask):
            if keep.sum() <= options["num_landmarks"]:
                continue
            found = compiled(*_example(layer, example))
            for n in range(layer.query.shape[2]):
                where = {"layer": i, "head": n, "example": example}
                values = {name: float(x[n]) for name, x in found.items()}
                rows.append({**where, **options, **values})
    return rows
