"""Measures heads of a model: errors of approximations, spectra, and matrices.

Numbers are float64 where the caller has enabled it, over valid tokens. `measure_errors`
leaves out sequences of no more valid tokens than landmarks, for which Nyström attention
is exact.

Letters: L tokens, N heads, H head dim, T queries, S keys.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from nystromformer.attention import find_attention, make_attention
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.pinv import PINVS, exact_pinv

# (layer, head) -> name -> matrix
HeadMatrices = dict[tuple[int, int], dict[str, np.ndarray]]
NUM_PINV_ITERS = 6  # of the iterative inverse, as in the paper


def saves_time(num_landmarks: int, num_tokens: int) -> bool:
    """Returns whether landmarks are fewer than half of the tokens.

    As many or more are taken to save nothing, whatever the device.
    """
    return 2 * num_landmarks < num_tokens


@functools.partial(
    jax.jit, static_argnames=("num_landmarks", "landmarks", "num_pinv_iters", "pinv")
)
def nystrom_errors(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    num_pinv_iters: int = NUM_PINV_ITERS,
    pinv: str = "iterative",
    **landmark_options: Any,
) -> dict[str, jax.Array]:
    """Returns errors of the approximations Ŝ = F Z B of the attention matrices S.

    All seeds of random landmarks share a program.

    Args:
      query, key, value: [L, N, H], zero where the mask is False.
      mask: bool [L].
      num_pinv_iters, pinv, landmark_options: options as in `nystrom_factors`.

    Returns:
      For each head, [N]:
        error: ‖ŜV − SV‖ / ‖SV‖, Frobenius.
        distance: ‖ŜV − SV‖∞, the largest row sum of absolute values.
        bound: (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, Proposition 1's bound of the distance.
    """
    max_row_sum = functools.partial(jnp.linalg.norm, ord=jnp.inf)

    def errors_of_head(
        query: jax.Array, key: jax.Array, value: jax.Array
    ) -> dict[str, jax.Array]:
        f, a, b = nystrom_kernels(query, key, mask, **landmark_options)
        z = PINVS[pinv](a, num_pinv_iters)
        inverse = exact_pinv(a)
        exact = softmax_matrix(query, key, mask) @ value
        approximation = f @ (z @ (b @ value))
        difference = jnp.where(mask[:, None], approximation - exact, 0)
        return {
            "error": relative_error(approximation, exact, mask),
            "distance": max_row_sum(difference),
            "bound": (1 + max_row_sum(inverse) + max_row_sum(inverse - z))
            * max_row_sum(value),
        }

    return jax.vmap(errors_of_head, in_axes=1)(query, key, value)


@functools.partial(jax.jit, static_argnames=("attention", "num_landmarks"))
def baseline_errors(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    attention: str,
    num_landmarks: int,
    seed: int | jax.Array = 0,
) -> dict[str, jax.Array]:
    """Returns the error of another attention with fresh parameters.

    Args:
      query, key, value, mask: as in `nystrom_errors`.
      attention: its name in ATTENTIONS.
      num_landmarks: its size, such as the number of rows or features.
      seed: the seed of its parameters.

    Returns:
      error: as in `nystrom_errors`, [N].
    """
    output = fresh_output(
        query, key, value, mask, attention=attention, size=num_landmarks, seed=seed
    )
    matrices = jax.vmap(softmax_matrix, (1, 1, None))(query, key, mask)  # [N, T, S]
    exact = jnp.einsum("nts,snh->tnh", matrices, value)
    return {"error": relative_error(output, exact, mask)}


def fresh_output(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    attention: str,
    size: int,
    seed: int | jax.Array,
) -> jax.Array:
    """Returns what an attention with fresh parameters gives, [L, N, H].

    Args:
      query, key, value, mask: as in `nystrom_errors`.
      attention: its name in ATTENTIONS.
      size: the value of its `size_option`, if it has one.
      seed: the seed of its parameters.
    """
    length, num_heads, head_dim = query.shape
    size_option = find_attention(attention).size_option
    sizes: Any = {size_option: size} if size_option else {}
    attend: Any = make_attention(
        attention,
        num_heads=num_heads,
        head_dim=head_dim,
        max_length=length,
        rngs=nnx.Rngs(jax.random.key(seed)),
        **sizes,
    )
    outputs = attend(query[None], key[None], value[None], mask=mask[None, None, None])
    return outputs[0]


def relative_error(output: jax.Array, exact: jax.Array, mask: jax.Array) -> jax.Array:
    """Returns ‖output − exact‖ / ‖exact‖ of each head, Frobenius, over valid tokens.

    Args:
      output, exact: [L, H] of one head, or [L, N, H].
      mask: bool [L].

    Returns:
      A number, or [N].
    """
    is_valid = mask.reshape(-1, *[1] * (exact.ndim - 1))
    difference = jnp.where(is_valid, output - exact, 0)
    valid_exact = jnp.where(is_valid, exact, 0)
    return relative_norm(difference, valid_exact, axis=(0, -1))


def relative_norm(
    difference: jax.Array, exact: jax.Array, axis: tuple[int, int] | None = None
) -> jax.Array:
    """Returns ‖difference‖ / ‖exact‖, Frobenius, over these axes or all."""
    return jnp.linalg.norm(difference, axis=axis) / jnp.linalg.norm(exact, axis=axis)


def measure_errors(
    layers: Sequence[AttentionInputs], grid: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """Measures every head and every sequence of more tokens than landmarks.

    Args:
      layers: the inputs of each layer's attention, as in `record_qkv`.
      grid: settings. `method` names one in the result. All other keys are arguments of
        `baseline_errors` if `attention` is among them, else of `nystrom_errors`;
        `num_landmarks` is always one.

    Returns:
      A row for each setting, layer, example and head: the setting, `layer`, `example`,
      `head` and the errors.
    """
    rows = []
    for setting in grid:
        options = {key: value for key, value in setting.items() if key != "method"}
        errors_of = baseline_errors if "attention" in options else nystrom_errors
        for layer, inputs in enumerate(layers):
            is_longer = inputs.mask.sum(1) > options["num_landmarks"]
            for example in np.flatnonzero(is_longer).tolist():
                errors = jax.device_get(errors_of(*inputs.example(example), **options))
                for head, row in enumerate(pd.DataFrame(errors).to_dict("records")):
                    row_key = {"layer": layer, "example": example, "head": head}
                    rows.append({**setting, **row_key, **row})
    return pd.DataFrame(rows)


def measure_spectra(layers: Sequence[AttentionInputs]) -> pd.DataFrame:
    """Computes the singular values of S of each head and example.

    Args:
      layers: the inputs of each layer's attention, as in `record_qkv`.

    Returns:
      A row for each singular value: `layer`, `head`, `example`, `index` from 1 for the
      largest, and `singular_value`, divided by the largest.
    """
    functions = {"exact": vmap_heads(softmax_matrix)}
    frames = []
    for example in range(len(layers[0].mask)):
        matrices_of_head = compute_matrices(layers, example, functions)
        for (layer, head), matrix_of_name in matrices_of_head.items():
            values = np.linalg.svd(matrix_of_name["exact"], compute_uv=False)
            frame = pd.DataFrame(
                {
                    "layer": layer,
                    "head": head,
                    "example": example,
                    "index": np.arange(1, len(values) + 1),
                    "singular_value": values / values[0],
                }
            )
            frames.append(frame)
    return pd.concat(frames)


def vmap_heads(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lifts a function of one head to all heads, and compiles it once.

    Args:
      function: a function of query and key [L, H] and mask [L].

    Returns:
      A function of query and key [L, N, H] and mask [L].
    """
    return jax.jit(jax.vmap(function, (1, 1, None)))


def compute_matrices(
    layers: Sequence[AttentionInputs],
    example: int,
    functions: Mapping[str, Callable[..., Any]],
) -> HeadMatrices:
    """Applies functions to every head of one example.

    Args:
      layers: the inputs of each layer's attention, as in `record_qkv`.
      example: the number of the example.
      functions: name -> function, as `vmap_heads` gives it. Of a result [L, L] the rows
        and columns of valid tokens are kept.

    Returns:
      (layer, head) -> name -> result.
    """
    matrices_of_head: HeadMatrices = {}
    for layer, inputs in enumerate(layers):
        query, key, _, mask = inputs.example(example)
        for name, function in functions.items():
            for head, matrix in enumerate(np.asarray(function(query, key, mask))):
                if matrix.shape == (len(mask), len(mask)):
                    matrix = matrix[mask][:, mask]
                matrices_of_head.setdefault((layer, head), {})[name] = matrix
    return matrices_of_head
