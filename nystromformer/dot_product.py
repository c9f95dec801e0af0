"""Exact attention of one head of one sequence, in the layout that a CPU likes.

Letters: T query length, S key length, H head dim.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.ops import at_least_float32, einsum, exp_in, long_dot

LONG = 4096  # keys; of longer sums by columns a CPU loses digits


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
    is_block: bool = False,
) -> jax.Array:
    """softmax(scale · Q Kᵀ + bias) V, normalised after the product with V.

    The scores lie with their longer axis first: a CPU multiplies them faster that way.

    Args:
      query, key, value: [T, H], [S, H], [S, H].
      mask: [S] or [T, S] bool, True = attend; a query with nothing to attend to gets
        finite numbers.
      bias: [T, S], or with one row for all queries or one column for all keys.
      scale: factor of the scores.
      drop: dropout of the weights, before they are normalised.
      precision: of both products; they accumulate in at least float32.
      is_block: whether other blocks of queries share these keys and values.

    Returns:
      [T, H] in at least float32.
    """
    wide = at_least_float32(query.dtype)
    dot = long_dot if is_block else einsum  # turned once, keys and values serve all
    keys_first = key.shape[0] > query.shape[0]
    keys, long_and_short = (0, (key, query)) if keys_first else (1, (query, key))

    def laid(x: jax.Array) -> jax.Array:
        x = jnp.atleast_2d(x)
        return x.T if keys_first else x

    scores = scale * dot("lh,mh->lm", *long_and_short, precision)
    if bias is not None:
        scores += laid(bias)
    if mask is not None:
        scores = jnp.where(laid(mask), scores, jnp.finfo(wide).min)
    largest = lax.stop_gradient(scores.max(keys, keepdims=True))
    weights = exp_in(scores - largest, value.dtype)
    total = weights.sum(keys, dtype=wide)  # [T]
    letters = "lm,lh->mh" if keys_first else "lm,mh->lh"
    if value.dtype != wide or len(value) > LONG:
        dot = long_dot  # XLA's CPU backend has no bfloat16 product by columns
    return dot(letters, drop(weights), value, precision) / total[:, None]
