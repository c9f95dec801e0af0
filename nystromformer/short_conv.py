"""A short convolution along the sequence, with a kernel for each channel.

Letters: B batch, L length, D channels, K kernel size.
"""

import jax
import jax.numpy as jnp

from nystromformer.ops import at_least_float32


def short_conv(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolves each channel along the sequence with its own kernel.

    Output t of channel d is Σₖ kernel[k, d] · x[t + k − (K − 1)/2, d], where x is zero
    outside the sequence. It is a sum of K shifted arrays, which for a short kernel is
    faster than banded matmuls. Those suit the convolution of V, where one long kernel
    serves a whole head. Where a sequence is sharded, neighbouring shards exchange
    (K − 1)/2 tokens.

    Args:
      x: [B, L, D], zero where a token does not count.
      kernel: [K, D], K odd.

    Returns:
      [B, L, D] in x's dtype, summed in at least float32.
    """
    length = x.shape[1]
    size = kernel.shape[0]
    margin = (size - 1) // 2
    summands = x.astype(at_least_float32(x.dtype))
    padded = jnp.pad(summands, ((0, 0), (margin, margin), (0, 0)))
    total = kernel[0][None, None] * padded[:, :length]
    for k in range(1, size):
        shifted = padded[:, k : k + length]
        total = total + kernel[k][None, None] * shifted
    return total.astype(x.dtype)
