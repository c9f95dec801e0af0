"""Errors of approximated attention in a model, in float64, over valid tokens.

With no more valid tokens than landmarks Nyström attention is exact by construction:
such sequences are left out.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx

from nystromformer.attention import ATTENTIONS, make_attention
from nystromformer.experiments.recorded_layers import Layer
from nystromformer.factors import nystrom_kernels, softmax_matrix
from nystromformer.landmarks import PINVS

Pictures = dict[tuple[int, int], dict[str, np.ndarray]]


@functools.partial(
    jax.jit, static_argnames=("num_landmarks", "landmarks", "num_pinv_iters", "pinv")
)
def nystrom_errors(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    num_pinv_iters: int = 6,
    pinv: str = "iterative",
    **landmarks: Any,
) -> dict[str, jax.Array]:
    """Errors [N] of the approximations Ŝ = F Z B of the heads' attention matrices S.

    query, key and value [L, N, H] are zero where the mask [L] is False; the options are
    those of `nystrom_factors`. All seeds of random landmarks share a program.

    Returns:
      error: ‖ŜV − SV‖ / ‖SV‖, Frobenius.
      distance: ‖ŜV − SV‖∞, the largest row sum of absolute values.
      bound: (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, which Proposition 1 sets to the distance.
    """
    norm = functools.partial(jnp.linalg.norm, ord=jnp.inf)

    def of_head(query: Any, key: Any, value: Any) -> dict[str, jax.Array]:
        f, a, b = nystrom_kernels(query, key, mask, **landmarks)
        z, inverse = PINVS[pinv](a, num_pinv_iters), jnp.linalg.pinv(a)
        exact = jnp.where(mask[:, None], softmax_matrix(query, key, mask) @ value, 0)
        difference = jnp.where(mask[:, None], f @ (z @ (b @ value)), 0) - exact
        return {
            "error": jnp.linalg.norm(difference) / jnp.linalg.norm(exact),
            "distance": norm(difference),
            "bound": (1 + norm(inverse) + norm(inverse - z)) * norm(value),
        }

    return jax.vmap(of_head, 1)(query, key, value)


@functools.partial(jax.jit, static_argnames=("attention", "num_landmarks"))
def baseline_errors(
    query: Any, key: Any, value: Any, mask: Any, *, attention: str, num_landmarks: int
) -> dict[str, jax.Array]:
    """Error [N] of another attention with fresh parameters, of as many rows."""
    length, num_heads, head_dim = query.shape
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": length}
    if option := ATTENTIONS[attention].size_option:
        sizes[option] = num_landmarks
    attend: Any = make_attention(attention, rngs=nnx.Rngs(0), **sizes)
    out = attend(query[None], key[None], value[None], mask=mask[None, None, None])[0]
    exact = jax.vmap(softmax_matrix, (1, 1, None))(query, key, mask)  # [N, T, S]
    expected = jnp.einsum("nts,snh->tnh", exact, value)
    both = jnp.where(mask[:, None, None], jnp.stack([out - expected, expected]), 0)
    norms = jnp.linalg.norm(both, axis=(1, 3))
    return {"error": norms[0] / norms[1]}


def measure_errors(
    layers: Sequence[Layer], grid: Iterable[Mapping[str, Any]]
) -> pd.DataFrame:
    """The errors of every head and every sequence of more tokens than landmarks.

    grid: options, which go into the rows: `method`, a name; num_landmarks; and others
      of `nystrom_errors`, or `attention`, the name of another one.
    """
    rows = []
    for named in grid:
        options = {key: x for key, x in named.items() if key != "method"}
        errors = baseline_errors if "attention" in options else nystrom_errors
        for i, layer in enumerate(layers):
            longer = layer.mask.sum(1) > options["num_landmarks"]
            for example in np.flatnonzero(longer).tolist():
                found = jax.device_get(errors(*layer.example(example), **options))
                place = {"layer": i, "example": example}
                for head, row in enumerate(pd.DataFrame(found).to_dict("records")):
                    rows.append({**named, **place, "head": head, **row})
    return pd.DataFrame(rows)


def spectra(layers: Sequence[Layer]) -> pd.DataFrame:
    """Singular values of S, the largest first, as fractions of it, a row each."""
    frames, function = [], {"exact": of_heads(softmax_matrix)}
    for example in range(len(layers[0].mask)):
        found = matrices(layers, example, function)
        for (layer, head), pictures in found.items():
            values = np.linalg.svd(pictures["exact"], compute_uv=False)
            row = {"layer": layer, "head": head, "example": example}
            row |= {"index": np.arange(1, len(values) + 1)}
            frames.append(pd.DataFrame({**row, "singular_value": values / values[0]}))
    return pd.concat(frames)


def of_heads(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of query, key [L, H] and mask [L] for all heads, compiled once."""
    return jax.jit(jax.vmap(function, (1, 1, None)))


def matrices(
    layers: Sequence[Layer], example: int, functions: Mapping[str, Callable[..., Any]]
) -> Pictures:
    """(layer, head) -> the result of each function on that head of one example.

    functions: as `of_heads` gives them; of a matrix [L, L] the rows and columns of
      valid tokens are kept.
    """
    pictures: Pictures = {}
    for i, layer in enumerate(layers):
        query, key, _, mask = layer.example(example)
        for name, function in functions.items():
            for n, x in enumerate(np.asarray(function(query, key, mask))):
                square = x.shape == mask.shape * 2
                of_head = pictures.setdefault((i, n), {})
                of_head[name] = x[mask][:, mask] if square else x
    return pictures
