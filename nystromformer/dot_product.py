"""Exact attention of one head of one sequence, in the layout that suits a CPU.

Letters: T query length, S key length, H head dim, E value dim. In products l is the
longer of T and S, and m the shorter.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.precision import at_least_float32, einsum

# Over more keys than these, sums along columns lose digits on a CPU.
MAX_KEYS_BY_COLUMNS = 4096


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    bias: jax.Array | None = None,
    scale: float = 1.0,
    drop: Callable[[jax.Array], jax.Array] = lambda weights: weights,
    precision: lax.PrecisionLike = None,
    are_keys_shared: bool = False,
) -> jax.Array:
    """softmax(scale · Q Kᵀ + bias) V, normalised after the product with V.

    Scores are stored with the longer axis first, which is faster on a CPU.

    Args:
      query: [T, H].
      key: [S, H].
      value: [S, E].
      mask: [S] or [T, S] bool, or with a single row or column; True = attend. A query
        with nothing to attend to gets finite numbers.
      bias: [T, S], or with one row for all queries or one column for all keys.
      scale: factor of the scores.
      drop: dropout of the weights, before they are normalised.
      precision: the precision of both products, which accumulate in at least float32.
      are_keys_shared: whether several blocks of queries use these keys and values. Then
        a transposed copy of them pays.

    Returns:
      [T, E] in at least float32.
    """
    accumulation_dtype = at_least_float32(query.dtype)
    has_keys_first = key.shape[0] > query.shape[0]
    key_axis = 0 if has_keys_first else 1
    # Keys and values are transposed only where several blocks share the cost.
    score_dot = long_dot if are_keys_shared else einsum

    if has_keys_first:
        scores = scale * score_dot("lh,mh->lm", key, query, precision)  # [S, T]
    else:
        scores = scale * score_dot("lh,mh->lm", query, key, precision)  # [T, S]
    if bias is not None:
        scores += _to_layout(bias, has_keys_first)
    if mask is not None:
        mask = _to_layout(mask, has_keys_first)
        scores = jnp.where(mask, scores, jnp.finfo(accumulation_dtype).min)

    largest = lax.stop_gradient(scores.max(key_axis, keepdims=True))
    weights = exp_in_dtype(scores - largest, value.dtype)
    total = weights.sum(key_axis, dtype=accumulation_dtype)  # [T]

    # Besides losing digits, XLA's CPU backend has no bfloat16 sums along columns.
    is_rounded = value.dtype != accumulation_dtype
    is_long_sum = is_rounded or value.shape[0] > MAX_KEYS_BY_COLUMNS
    value_dot = long_dot if are_keys_shared or is_long_sum else einsum
    letters = "lm,lh->mh" if has_keys_first else "lm,mh->lh"
    return value_dot(letters, drop(weights), value, precision) / total[:, None]


def _to_layout(x: jax.Array, has_keys_first: bool) -> jax.Array:
    """A mask or a bias, [S] or [T, S], as an array that broadcasts to the scores."""
    x = jnp.atleast_2d(x)
    return x.T if has_keys_first else x


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def exp_in_dtype(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """exp(x) in dtype, written to memory once.

    The result is also all that the gradient keeps, where jax would keep it in x's
    dtype, too.
    """
    return lax.optimization_barrier(jnp.exp(x).astype(dtype))


@exp_in_dtype.defjvp
def _exp_in_dtype_jvp(dtype: Any, primals: Any, tangents: Any) -> Any:
    (x,) = primals
    (x_tangent,) = tangents
    out = exp_in_dtype(x, dtype)
    return out, out * x_tangent.astype(dtype)


def materialize_on_cpu(x: jax.Array) -> jax.Array:
    """Writes x to memory on a CPU.

    Otherwise XLA would fuse a transposition of x into the product that reads it.
    """
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def long_dot(letters: str, x: Any, y: Any, precision: Any) -> jax.Array:
    """`einsum` for three products, laid out for a CPU. L is the longest axis.

        "lh,mh->lm"   scores X Yᵀ
        "lm,lh->mh"   Wᵀ V
        "lm,mh->lh"   W V

    XLA's CPU backend is slow, and loses digits, where it sums down columns: in Wᵀ V,
    and in the gradient of Y in X Yᵀ. Here both are computed from a transposed copy. The
    copy takes as long as one product saves, so it pays only where several products
    share it.
    """
    if letters == "lm,lh->mh":
        transposed = materialize_on_cpu(y.T)
        return materialize_on_cpu(einsum("hl,lm->hm", transposed, x, precision)).T
    return einsum(letters, x, y, precision)


@long_dot.defjvp
def _long_dot_jvp(letters: str, precision: Any, factors: Any, tangents: Any) -> Any:
    x, y = factors
    x_tangent, y_tangent = tangents
    out = long_dot(letters, x, y, precision)
    tangent_of_x = einsum(letters, x_tangent, y, precision)
    if letters == "lh,mh->lm":
        # The gradient of y is the transpose of this product and sums over L.
        x_transposed = materialize_on_cpu(x.T)
        y_transposed = materialize_on_cpu(y_tangent.T)
        tangent_of_y = einsum("hl,hm->lm", x_transposed, y_transposed, precision)
    else:
        tangent_of_y = einsum(letters, x, y_tangent, precision)
    return out, tangent_of_x + tangent_of_y
