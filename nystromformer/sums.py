"""Sums over very long sequences, as exact as those over short ones."""

from typing import Any

import jax
import jax.numpy as jnp

LONG = 4096  # terms: what is not longer loses next to nothing
PART = 512  # terms that are added one by one of what is longer


def matmul_in_parts(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """A B for A [T, S] and B [S, H], a sum of such products over parts of a long S.

    A CPU adds the terms one by one, which in float32 loses digits. An S without a
    divisor that makes parts of PART / 4 to PART terms stays whole.

    Args:
      a, b: the factors.
      **options: as for `jnp.matmul`.
    """
    length = b.shape[0]
    fewest = -(-length // PART) if length > LONG else 1
    parts = next((n for n in range(fewest, 4 * fewest) if length % n == 0), 1)
    if parts == 1:
        return jnp.matmul(a, b, **options)
    a, b = a.reshape(-1, parts, length // parts), b.reshape(parts, length // parts, -1)
    return jnp.einsum("tps,psh->pth", a, b, **options).sum(0)
