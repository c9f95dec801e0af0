"""Locality-sensitive hashing by angle: near vectors tend to fall into one bucket.

Andoni et al., "Practical and Optimal LSH for Angular Distance", NeurIPS 2015, as
Reformer uses it.

Letters: L length, N heads, H head dim, R rounds of hashing, K axes for 2 K buckets.
"""

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.ops import at_least_float32


def random_rotations(key: jax.Array, shape: tuple[int, int, int, int]) -> jax.Array:
    """Draws the axes that tokens are hashed by.

    Args:
      key: the key of the draw.
      shape: N, R, K, H.

    Returns:
      Normal numbers [N, R, K, H]. Axis k is the same for every K, and so every length.
    """
    num_heads, num_hashes, num_axes, head_dim = shape

    def draw_axis(k: jax.Array) -> jax.Array:
        axis_key = jax.random.fold_in(key, k)
        axis_shape = (num_heads, num_hashes, head_dim)
        return jax.random.normal(axis_key, axis_shape, jnp.float32)

    return jax.vmap(draw_axis, out_axes=2)(jnp.arange(num_axes))


def hash_buckets(
    x: jax.Array, mask: jax.Array, rotations: jax.Array, bucket_size: int
) -> jax.Array:
    """Hashes by angle: the nearest of the 2 K directions ±axis k, in each round.

    It has no gradient.

    Args:
      x: [L, H].
      mask: [L] bool, True = a token.
      rotations: [R, K, H], K ≥ ⌈L / bucket_size⌉.
      bucket_size: n valid tokens use the first ⌈n / bucket_size⌉ axes, two buckets
        each; n ≤ bucket_size tokens are in one bucket.

    Returns:
      [R, L] int32: k for +axis k, K + k for −axis k, 2 K for padding.
    """
    num_axes = rotations.shape[1]
    num_valid = mask.sum()
    accumulation_dtype = at_least_float32(x.dtype)
    # A bucket must not depend on how a product is rounded.
    projections = jnp.einsum(
        "rkh,lh->rlk",
        rotations.astype(accumulation_dtype),
        lax.stop_gradient(x).astype(accumulation_dtype),
        precision="highest",
    )
    is_used = jnp.arange(num_axes) * bucket_size < num_valid  # [K]
    magnitudes = jnp.where(is_used[None, None], jnp.abs(projections), -1)
    axis = jnp.argmax(magnitudes, axis=-1)  # [R, L]
    projection = jnp.take_along_axis(projections, axis[:, :, None], axis=-1)[:, :, 0]

    bucket = jnp.where(projection < 0, num_axes + axis, axis)
    bucket = jnp.where(num_valid <= bucket_size, 0, bucket)
    return jnp.where(mask[None], bucket, 2 * num_axes).astype(jnp.int32)
