"""Dropout that draws few random bits."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp


def random_words(rng: jax.Array, size: int) -> jax.Array:
    """uint32 [size]: a hash of each position and of two random words of the key.

    The hash is triple32 of Wellons' hash-prospector, far less work than Threefry.
    """
    first, second = jax.random.bits(rng, (2,), jnp.uint32)
    x = jax.lax.iota(jnp.uint32, size) + first
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11) ^ second) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def dropout(
    x: jax.Array,
    rate: float,
    rng: jax.Array | None,
    broadcast_dims: Sequence[int] = (),
) -> jax.Array:
    """Zeroes each number with probability `rate` and scales the rest; 16 bits a number.

    The rate is rounded to a multiple of 2⁻¹⁶ and the scale fits the rounded one. Both
    halves of every random word are used.

    Args:
      x: any shape.
      rate: in [0, 1).
      rng: a random key; None = no dropout.
      broadcast_dims: axes along which all share one draw.

    Returns:
      As x, in its dtype.
    """
    dropped = round(rate * 2**16)
    if rng is None or dropped == 0:
        return x
    shape = [1 if axis in broadcast_dims else n for axis, n in enumerate(x.shape)]
    size = math.prod(shape)
    words = random_words(rng, (size + 1) // 2)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)
    keep = halves[:size].reshape(shape) >= dropped
    return jnp.where(keep, x / (1 - dropped / 2**16), 0).astype(x.dtype)
