"""How far Nyström attention is from exact attention, in float64, over valid tokens.

Where no more tokens than landmarks are valid the method is exact by construction: those
sequences are left out.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.lab.study.capture import Layer
from nystromformer.study import (
    inverse_by,
    nystrom_kernels,
    nystrom_rows,
    softmax_matrix,
)

Row = dict[str, Any]
Pictures = dict[tuple[int, int], dict[Any, np.ndarray]]


def nystrom_matrix(
    query: jax.Array, key: jax.Array, mask: jax.Array | None = None, **options: Any
) -> jax.Array:
    """The matrix [L, L] that `nystrom` applies; options as for `nystrom_rows`."""
    return nystrom_rows(query, key, slice(None), mask, **options)


def deviation(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    num_pinv_iters: int = 6,
    inverse: str = "iterative",
    **landmarks: Any,
) -> dict[str, jax.Array]:
    """What the approximation Ŝ of one head's attention matrix S is off by.

    ‖·‖ is Frobenius's norm, ‖·‖∞ the largest row sum of absolute values.

    Args:
      query, key, value: [L, H].
      mask: [L] bool, True = counts.
      num_pinv_iters, inverse, **landmarks: as for `nystrom_matrix`.

    Returns:
      error: ‖ŜV − SV‖ / ‖SV‖.
      residual: ‖A Z A − A‖ / ‖A‖, how far Z is from an inverse of A.
      distance: ‖ŜV − SV‖∞.
      bound: (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, which Proposition 1 sets to the distance.
    """
    exact = softmax_matrix(query, key, mask) @ value
    a, z = middle(query, key, mask, num_pinv_iters, inverse, **landmarks)
    options = {"num_pinv_iters": num_pinv_iters, "inverse": inverse, **landmarks}
    difference = nystrom_matrix(query, key, mask, **options) @ value - exact
    exact, difference, value = (
        jnp.where(mask[:, None], x, 0) for x in (exact, difference, value)
    )
    inverted = jnp.linalg.pinv(a)
    factor = 1 + _norm_inf(inverted) + _norm_inf(inverted - z)
    norm = jnp.linalg.norm
    return {
        "error": norm(difference) / norm(exact),
        "residual": norm(a @ z @ a - a) / norm(a),
        "distance": _norm_inf(difference),
        "bound": factor * _norm_inf(value),
    }


def middle(
    query: jax.Array,
    key: jax.Array,
    mask: jax.Array,
    num_pinv_iters: int = 6,
    inverse: str = "iterative",
    **landmarks: Any,
) -> tuple[jax.Array, jax.Array]:
    """A = softmax(Q̃ K̃ᵀ) and Z, what stands for its inverse: [M, M] each."""
    _, a, _ = nystrom_kernels(query, key, mask, **landmarks)
    return a, inverse_by(inverse)(a, num_pinv_iters)


def measure_heads(
    layers: Sequence[Layer], grid: Iterable[Mapping[str, Any]]
) -> list[Row]:
    """`deviation` of every head with more valid tokens than landmarks.

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
    return rows


def spectra(layers: Sequence[Layer]) -> list[Row]:
    """Singular values of S, the largest first, as shares of the largest."""
    rows = []
    for example in range(len(layers[0].mask)):
        found = matrices(layers, example, {"exact": softmax_matrix})
        for (layer, head), pictures in found.items():
            values = np.linalg.svd(pictures["exact"], compute_uv=False)
            where = {"layer": layer, "head": head, "example": example}
            for rank, value in enumerate((values / values[0]).tolist(), 1):
                rows.append({**where, "index": rank, "singular_value": value})
    return rows


def matrices(
    layers: Sequence[Layer], example: int, functions: Mapping[Any, Callable[..., Any]]
) -> Pictures:
    """(layer, head) -> what each function makes of that head of one example, by name.

    Args:
      layers: of all examples.
      example: which.
      functions: of query, key [L, H] and mask [L]; of matrices [L, L] the rows and
        columns of valid tokens are kept.
    """

    @functools.partial(jax.vmap, in_axes=(1, 1, None))
    def of_heads(*head: jax.Array) -> dict[Any, jax.Array]:
        return {name: function(*head) for name, function in functions.items()}

    compiled, pictures = jax.jit(of_heads), {}
    for i, layer in enumerate(layers):
        query, key, _, mask = _example(layer, example)
        found = jax.tree.map(np.asarray, compiled(query, key, mask))
        keep = layer.mask[example]
        for n in range(layer.query.shape[2]):
            pictures[i, n] = {
                name: x[n][keep][:, keep] if x.shape[1:] == keep.shape * 2 else x[n]
                for name, x in found.items()
            }
    return pictures


def _norm_inf(matrix: jax.Array) -> jax.Array:
    return jnp.abs(matrix).sum(-1).max()


@functools.partial(
    jax.jit,
    static_argnames=("num_landmarks", "landmarks", "num_pinv_iters", "inverse"),
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
