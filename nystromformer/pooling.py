"""Pooling: the vectors of a sequence become one, in which padding has no part.

Letters: B batch, L length, D model dim.
"""

import jax
import jax.numpy as jnp

from nystromformer.ops import at_least_float32, zero_masked

POOLINGS = ("mean", "padded_mean", "max", "last", "cls_token")


def pool(
    pooling: str, x: jax.Array, mask: jax.Array | None, *, max_length: int
) -> jax.Array:
    """Pools the vectors of a sequence.

    Args:
      pooling: a name in POOLINGS. "mean" or "max" over the valid tokens;
        "padded_mean", their sum divided by max_length, as published; "last", the last
        valid token; or "cls_token", the first vector, which is a learned one.
      x: [B, L, D].
      mask: [B, L] bool, True = valid; None = all.
      max_length: the max_length of the encoder, the divisor of "padded_mean".

    Returns:
      [B, D] in at least float32.
    """
    if pooling == "mean":
        return pool_mean(x, mask)
    if pooling == "padded_mean":
        return pool_padded_mean(x, mask, max_length)
    if pooling == "max":
        return pool_max(x, mask)
    if pooling == "last":
        return pool_last(x, mask)
    return x[:, 0].astype(at_least_float32(x.dtype))


def pool_mean(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The mean over valid tokens.

    Args:
      x: [B, L, D].
      mask: [B, L] bool, True = valid; None = all.

    Returns:
      [B, D] in at least float32, zero where no token is valid.
    """
    dtype = at_least_float32(x.dtype)
    if mask is None:
        return x.mean(1, dtype=dtype)
    total = zero_masked(x, mask).sum(1, dtype=dtype)
    num_valid = jnp.maximum(mask.sum(1, dtype=dtype), 1)
    return total / num_valid[:, None]


def pool_padded_mean(
    x: jax.Array, mask: jax.Array | None, max_length: int
) -> jax.Array:
    """The sum over valid tokens divided by max_length; the rest as in `pool_mean`."""
    total = zero_masked(x, mask).sum(1, dtype=at_least_float32(x.dtype))
    return total / max_length


def pool_max(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The maximum over valid tokens; arguments and result are those of `pool_mean`."""
    x = x.astype(at_least_float32(x.dtype))
    if mask is None:
        return x.max(1)
    lowest = jnp.finfo(x.dtype).min
    largest = jnp.where(mask[:, :, None], x, lowest).max(1)
    has_tokens = mask.any(1)
    return jnp.where(has_tokens[:, None], largest, 0)


def pool_last(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The vector of the last valid token; arguments and result as in `pool_mean`."""
    x = x.astype(at_least_float32(x.dtype))
    if mask is None:
        return x[:, -1]
    num_behind = jnp.argmax(mask[:, ::-1], axis=1)  # tokens behind the last valid one
    last = x.shape[1] - 1 - num_behind
    tokens = zero_masked(x, mask)
    return jnp.take_along_axis(tokens, last[:, None, None], axis=1)[:, 0]
