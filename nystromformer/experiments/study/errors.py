"""Errors of approximated attention in a model, in float64, over valid tokens.

With no more valid tokens than landmarks Nyström attention is exact by construction:
such sequences are left out.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from nystromformer.attention import ATTENTIONS, make_attention
from nystromformer.config import ConfigError
from nystromformer.landmarks import PINVS, nystrom_kernels, softmax_matrix

Pictures = dict[tuple[int, int], dict[str, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Layer:
    """Query, key and value float64 [B, L, N, H] of one layer, and mask bool [B, L]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray

    def example(self, index: int) -> list[np.ndarray]:
        """Query, key, value [L, N, H] and mask [L] of one example; padding is zero."""
        mask = self.mask[index]
        arrays = (x[index] for x in (self.query, self.key, self.value))
        return [*(np.where(mask[:, None, None], x, 0) for x in arrays), mask]


class _Recorder:
    """Takes the place of an attention: computes the same and keeps its inputs."""

    def __init__(self, attention: Any):
        self.attention, self.layer = attention, None

    def __call__(
        self, query: Any, key: Any, value: Any, mask: Any = None, **flax: Any
    ) -> jax.Array:
        valid = np.ones(query.shape[:2], bool) if mask is None else mask[:, 0, 0]
        arrays = (np.asarray(x, np.float64) for x in (query, key, value))
        self.layer = Layer(*arrays, mask=np.asarray(valid))
        return self.attention(query, key, value, mask=mask, **flax)


def record_qkv(
    encoder: Any, inputs: jax.typing.ArrayLike, mask: Any = None
) -> list[Layer]:
    """The inputs of each layer's attention for tokens [B, L], without dropout.

    Raises:
      ConfigError: the attention has no queries and keys.
    """
    encoder = nnx.clone(encoder)
    encoder.remat = "none"
    recorders = []
    for block in encoder.blocks:
        if block.attention.num_projections == 1:
            raise ConfigError("attention 'identity' has no queries and keys")
        recorders.append(_Recorder(block.attention.attention))
        block.attention.attention = recorders[-1]
    encoder(inputs, mask)
    return [recorder.layer for recorder in recorders]


def approximation_error(
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
      query, key, value: [L, H], zero where the mask [L] is False.
      mask: True = valid.
      num_pinv_iters, pinv, **landmarks: as for `nystrom_factors`.

    Returns:
      error: ‖ŜV − SV‖ / ‖SV‖.
      residual: ‖A Z A − A‖ / ‖A‖, the distance of Z from an inverse of A.
      distance: ‖ŜV − SV‖∞.
      bound: (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, which Proposition 1 sets to the distance.
    """
    f, a, b = nystrom_kernels(query, key, mask, **landmarks)
    z, inverse = PINVS[pinv](a, num_pinv_iters), jnp.linalg.pinv(a)
    exact = jnp.where(mask[:, None], softmax_matrix(query, key, mask) @ value, 0)
    difference = jnp.where(mask[:, None], f @ (z @ (b @ value)), 0) - exact
    norm = jnp.linalg.norm
    return {
        "error": norm(difference) / norm(exact),
        "residual": norm(a @ z @ a - a) / norm(a),
        "distance": norm(difference, jnp.inf),
        "bound": (1 + norm(inverse, jnp.inf) + norm(inverse - z, jnp.inf))
        * norm(value, jnp.inf),
    }


def measure_nystrom(
    layers: Sequence[Layer], grid: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """`approximation_error` of every head and sequence, a row each.

    grid: options of `approximation_error`, each with its num_landmarks, and `method`,
    their name; they go into the rows.
    """
    rows = []
    for method, options in ((x["method"], {**x}) for x in grid):
        del options["method"]
        seed = options.pop("landmark_seed", 0)
        for where, arrays in _longer(layers, options["num_landmarks"]):
            found = _errors_of_heads(seed, *arrays, **options)
            rows += _rows({**where, "method": method, **options}, found)
    return pd.DataFrame(rows)


def measure_baselines(
    layers: Sequence[Layer], names: Sequence[str], counts: Sequence[int]
) -> pd.DataFrame:
    """The error of other attentions with fresh parameters, at sizes as of landmarks."""
    exact, rows = jax.vmap(softmax_matrix, (1, 1, None), 1), []  # [T, N, S]
    for name, count in itertools.product(names, counts):
        for where, (query, key, value, mask) in _longer(layers, count):
            length, num_heads, head_dim = query.shape
            sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": length}
            option = ATTENTIONS[name].size_option
            options: Any = {option: count} if option else {}
            attention: Any = make_attention(name, **sizes, rngs=nnx.Rngs(0), **options)
            wide = (x[None] for x in (query, key, value))
            out = attention(*wide, mask=mask[None, None, None])[0][mask]
            expected = jnp.einsum("tns,snh->tnh", exact(query, key, mask), value)[mask]
            norms = jnp.linalg.norm(jnp.stack([out - expected, expected]), axis=(1, 3))
            where |= {"method": name, "num_landmarks": count}
            rows += _rows(where, {"error": norms[0] / norms[1]})
    return pd.DataFrame(rows)


def spectra(layers: Sequence[Layer]) -> pd.DataFrame:
    """Singular values of S, the largest first, as fractions of it, a row each."""
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
    layers: Sequence[Layer], example: int, functions: Mapping[str, Callable[..., Any]]
) -> Pictures:
    """(layer, head) -> the result of each function on that head of one example.

    functions: of query, key [L, H] and mask [L]; of matrices [L, L] the rows and
    columns of valid tokens are kept.
    """
    heads = {name: jax.jit(jax.vmap(f, (1, 1, None))) for name, f in functions.items()}
    pictures: Pictures = {}
    for i, layer in enumerate(layers):
        query, key, _, mask = layer.example(example)
        for name, of_heads in heads.items():
            for n, x in enumerate(np.asarray(of_heads(query, key, mask))):
                square = x.shape == mask.shape * 2
                of_head = pictures.setdefault((i, n), {})
                of_head[name] = x[mask][:, mask] if square else x
    return pictures


def _longer(layers: Sequence[Layer], count: int) -> Iterable[tuple[dict, list]]:
    """Layer and example with their arrays, of more than `count` valid tokens."""
    for i, layer in enumerate(layers):
        for example in np.flatnonzero(layer.mask.sum(1) > count).tolist():
            yield {"layer": i, "example": example}, layer.example(example)


def _rows(where: dict[str, Any], found: Mapping[str, jax.Array]) -> list[dict]:
    """A row of each head."""
    return [
        {**where, "head": n, **{name: float(x[n]) for name, x in found.items()}}
        for n in range(len(found["error"]))
    ]


@functools.partial(
    jax.jit, static_argnames=("num_landmarks", "landmarks", "num_pinv_iters", "pinv")
)
def _errors_of_heads(seed: Any, *arrays: Any, **options: Any) -> dict[str, jax.Array]:
    """One program for all seeds of random landmarks."""
    of_head = functools.partial(approximation_error, landmark_seed=seed, **options)
    return jax.vmap(of_head, in_axes=(1, 1, 1, None))(*arrays)
