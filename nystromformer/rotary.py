"""Rotary positions: queries and keys are rotated by angles that grow with position.

Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021. With
R(t) the rotation of position t, (R(t) q) · (R(s) k) = q · R(s − t) k: in exact
attention a position matters only relative to others.

Rotation comes before the attention, whichever it is. So the landmarks of Nyström
attention are means of rotated vectors, Reformer hashes rotated vectors, and a feature
map is taken of rotated vectors; the scores of such an attention need not be functions
of s − t.

Letters: B batch, L length, N heads, H head dim.
"""

import jax
import jax.numpy as jnp

from nystromformer.ops import at_least_float32

# The first pair of numbers turns by 1 radian a token, each next one by less, and the
# last by BASE^(2/H) / BASE.
BASE = 10_000


def rotate_by_position(x: jax.Array) -> jax.Array:
    """Rotates the numbers i and i + H/2 of token t by t · BASE^(−2i/H).

    Args:
      x: [B, L, N, H] queries or keys, H even. Token t of the array has position t,
        whether or not there is padding before it.

    Returns:
      [B, L, N, H] in x's dtype, computed in at least float32.
    """
    angle_dtype = at_least_float32(x.dtype)
    half = x.shape[-1] // 2
    frequencies = jnp.array([BASE ** (-i / half) for i in range(half)], angle_dtype)
    angles = jnp.outer(jnp.arange(x.shape[1], dtype=angle_dtype), frequencies)
    cos = jnp.cos(angles)[None, :, None]
    sin = jnp.sin(angles)[None, :, None]

    first, second = jnp.split(x.astype(angle_dtype), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
