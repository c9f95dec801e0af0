"""Smooth queries, keys and values, which landmarks approximate well."""

import jax
import jax.numpy as jnp
import numpy as np

NUM_WAVES = 8


def smooth_inputs(
    length: int,
    *,
    batch_size: int = 1,
    num_heads: int,
    head_dim: int,
    dtype: jax.typing.DTypeLike = jnp.float32,
    count: int = 3,
) -> list[jax.Array]:
    """Sums of NUM_WAVES sines of periods L, L/2, …, of random phase and unit variance.

    Returns:
      `count` arrays [B, L, N, H], query, key, value and more; the same every time.
    """
    shape = (count, batch_size, 1, num_heads, head_dim, NUM_WAVES)
    phases = np.random.default_rng(0).random(shape)
    position = np.arange(length)[:, None, None] / length
    waves = np.zeros((count, batch_size, length, num_heads, head_dim))
    for wave in range(NUM_WAVES):  # one at a time: all at once are NUM_WAVES × as large
        waves += np.sin(2 * np.pi * (position * (wave + 1) + phases[..., wave]))
    return [jnp.asarray((2 / NUM_WAVES) ** 0.5 * x, dtype) for x in waves]
