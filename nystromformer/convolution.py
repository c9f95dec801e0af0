"""The depthwise convolution of V, the skip connection of Nyström attention.

Letters: S key length, H head dim, K kernel size.
"""

import jax
import jax.numpy as jnp

from nystromformer.blocks import neighbourhoods
from nystromformer.precision import at_least_float32


def depthwise_conv(
    value: jax.Array,
    kernel: jax.Array,
    mask: jax.Array | None = None,
    *,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """The skip connection of V: one odd kernel along the sequence for all of H.

    Blocks × banded matrix: a block of outputs is a Toeplitz matrix times the block of
    inputs with its margins, which is made of matmuls on every device.

    Args:
      value: [S, H].
      kernel: [K], K odd, centred: output t = Σₖ kernel[k] · value[t + k − (K − 1)/2].
      mask: [S] bool, False = counts as zero.
      precision: of the product.

    Returns:
      [S, H] in at least float32.
    """
    length, head_dim = value.shape
    size = kernel.shape[0]
    margin = size // 2
    block = max(32, margin)
    if mask is not None:
        value = jnp.where(mask[:, None], value, 0)
    windows = neighbourhoods(value, block, margin)  # [C, block + 2 margin, H]
    offsets = jnp.arange(block + 2 * margin)[None, :] - jnp.arange(block)[:, None]
    inside = (offsets >= 0) & (offsets < size)
    band = jnp.where(inside, kernel[jnp.clip(offsets, 0, size - 1)], 0)
    out = jnp.einsum(
        "tw,bwh->bth",
        band.astype(value.dtype),
        windows,
        precision=precision,
        preferred_element_type=at_least_float32(value.dtype),
    )
    return out.reshape(-1, head_dim)[:length]
