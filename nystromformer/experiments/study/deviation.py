"""The error of Nyström attention to exact attention, in float64, over valid tokens.

Where no more tokens than landmarks are valid the method is exact by construction: those
sequences are left out.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from nystromformer.experiments.study.capture import Layer
from nystromformer.landmarks import PINVS, nystrom_kernels, softmax_matrix

Pictures = dict[tuple[int, int], dict[Any, np.ndarray]]


def deviation(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    num_pinv_iters: int = 6,
    pinv: str = "iterative",
    **landmarks: Any,
) -> dict[str, jax.Array]:
    """Errors of the approximation Ŝ = F Z B of one head's attention matrix S.

    ‖·‖ is Frobenius's norm, ‖·‖∞ the largest row sum of absolute values.

    Args:
      query, key, value: [L, H], zero where the mask is False.
      mask: [L] bool, True = counts.
      num_pinv_iters, pinv, **landmarks: as for `nystrom_factors`.

    Returns:
      error: ‖ŜV − SV‖ / ‖SV‖.
      residual: ‖A Z A − A‖ / ‖A‖, how far Z is from an inverse of A.
      distance: ‖ŜV − SV‖∞.
      bound: (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, which Proposition 1 sets to the distance.
    """
    f, a, b = nystrom_kernels(query, key, mask, **landmarks)
    z, inverted = PINVS[pinv](a, num_pinv_iters), jnp.linalg.pinv(a)
    exact = jnp.where(mask[:, None], softmax_matrix(query, key, mask) @ value, 0)
    difference = jnp.where(mask[:, None], f @ (z @ (b @ value)), 0) - exact
    factor = 1 + _norm_inf(inverted) + _norm_inf(inverted - z)
    norm = jnp.linalg.norm
    return {
        "error": norm(difference) / norm(exact),
        "residual": norm(a @ z @ a - a) / norm(a),
        "distance": _norm_inf(difference),
        "bound": factor * _norm_inf(value),
    }


def measure_heads(
    layers: Sequence[Layer], grid: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """`deviation` of every head with more valid tokens than landmarks, a row each.

    Args:
      layers: of the same examples.
      grid: options of `deviation`, each with its num_landmarks; they go into the rows.
    """
    rows = []
    for options in grid:
        for i, layer in enumerate(layers):
            for example, keep in enumerate(layer.mask):
                if keep.sum() <= options["num_landmarks"]:
                    continue
                found = _deviation_of_heads(*_example(layer, example), **options)
                for n in range(layer.query.shape[2]):
                    values = {name: float(x[n]) for name, x in found.items()}
                    where = {"layer": i, "head": n, "example": example}
                    rows.append({**where, **options, **values})
    return pd.DataFrame(rows)


def spectra(layers: Sequence[Layer]) -> pd.DataFrame:
    """Singular values of S, the largest first, as shares of the largest, a row each."""
    frames = []
    for example in range(len(layers[0].mask)):
        found = matrices(layers, example, {"exact": softmax_matrix})
        for (layer, head), pictures in found.items():
            values = np.linalg.svd(pictures["exact"], compute_uv=False)
            row = {"layer": layer, "head": head, "example": example}
            row |= {"index": np.arange(1, len(values) + 1)}
            frames.append(pd.DataFrame({**row, "singular_value": values / values[0]}))
    return pd.concat(frames)


def matrices(
    layers: Sequence[Layer], example: int, functions: Mapping[Any, Callable[..., Any]]
) -> Pictures:
    """(layer, head) -> the result of each function on that head of one example.

    Args:
      layers: of all examples.
      example: which.
      functions: of query, key [L, H] and mask [L]; of matrices [L, L] the rows and
        columns of valid tokens are kept.
    """

    @functools.partial(jax.vmap, in_axes=(1, 1, None))
    def of_heads(*head: jax.Array) -> list[jax.Array]:
        # No dict: jit would sort it, and the first is what errors are measured from.
        return [function(*head) for function in functions.values()]

    compiled, pictures = jax.jit(of_heads), {}
    for i, layer in enumerate(layers):
        query, key, _, mask = _example(layer, example)
        found = jax.tree.map(np.asarray, compiled(query, key, mask))
        keep = layer.mask[example]
        for n in range(layer.query.shape[2]):
            pictures[i, n] = {
                name: x[n][keep][:, keep] if x.shape[1:] == keep.shape * 2 else x[n]
                for name, x in zip(functions, found, strict=True)
            }
    return pictures


def _norm_inf(matrix: jax.Array) -> jax.Array:
    return jnp.abs(matrix).sum(-1).max()


@functools.partial(
    jax.jit,
    static_argnames=("num_landmarks", "landmarks", "num_pinv_iters", "pinv"),
)
def _deviation_of_heads(*arrays: jax.Array, **options: Any) -> dict[str, jax.Array]:
    """One program for all draws of random landmarks."""
    of_head = functools.partial(deviation, **options)
    return jax.vmap(of_head, in_axes=(1, 1, 1, None))(*arrays)


def _example(layer: Layer, example: int) -> list[jax.Array]:
    """Query, key, value [L, N, H] and mask [L]; zero where the mask is False."""
    mask = layer.mask[example]
    arrays = (x[example] for x in (layer.query, layer.key, layer.value))
    zeroed = (np.where(mask[:, None, None], x, 0) for x in arrays)
    return [*map(jnp.asarray, zeroed), jnp.asarray(mask)]
