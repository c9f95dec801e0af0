"""Nyström attention: `nystrom` over heads and batch, and the convolution of V.

Letters: B batch, T query length, S key length, N heads, H head dim, K kernel size.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import (
    LARGEST_SEED,
    Attention,
    check_choice,
    check_range,
)
from nystromformer.blocks import neighbourhoods
from nystromformer.landmarks import LANDMARKS, PINVS
from nystromformer.nystrom import LANDMARK_PADDINGS, iterative_pinv, nystrom
from nystromformer.ops import at_least_float32

PINV_INITS = ("per_matrix", "per_batch")


def depthwise_conv(
    value: jax.Array,
    kernel: jax.Array,
    *,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """The skip connection of V: one odd kernel along the sequence for all of H.

    Output t = Σₖ kernel[k] · value[t + k − (K − 1)/2]. Blocks × banded matrix: a block
    of outputs is a Toeplitz matrix times the block of inputs with its margins, which is
    made of matmuls on every device.

    Args:
      value: [S, H], zero where it does not count.
      kernel: [K], K odd.
      precision: of the product.

    Returns:
      [S, H] in at least float32.
    """
    length, head_dim = value.shape
    size = kernel.shape[0]
    margin = size // 2
    block = max(32, margin)
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
    return out.reshape(-1, head_dim)[:length].astype(value.dtype)


class NystromAttention(Attention):
    """Nyström attention, eq. (13), and the convolution of V.

    Options:
      num_landmarks: M ≥ 1. M ≥ the number of valid tokens is exact attention.
      num_pinv_iters: iterations towards the pseudo-inverse.
      conv_kernel_size: K odd, or 0 for none. The kernel [K, N] of the skip connection
        starts as U(−1/√K, 1/√K), as in the published code.
      landmark_padding: "mask", or "count" for the published treatment of padding.
      landmarks, pinv: names in `landmarks.LANDMARKS` and `landmarks.PINVS`.
      landmark_seed: of the tokens drawn.
      pinv_init: Z₀ scaled "per_matrix" by its own norms, or, as published, "per_batch"
        by the largest of the batch: an example then depends on its neighbours.
    """

    size_option = "num_landmarks"
    padding_sensitive = {"landmark_padding": "count"}
    defaults = {"conv_kernel_size": 35}

    def __init__(
        self,
        *,
        num_heads: int,
        max_length: int,
        rngs: nnx.Rngs,
        num_landmarks: int = 64,
        num_pinv_iters: int = 6,
        conv_kernel_size: int = 0,
        landmark_padding: str = "mask",
        landmarks: str = "segment_means",
        landmark_seed: int = 0,
        pinv: str = "iterative",
        pinv_init: str = "per_matrix",
        **sizes: Any,
    ):
        check_range("num_landmarks", num_landmarks, 1)
        check_range("num_pinv_iters", num_pinv_iters, 0)
        check_range("landmark_seed", landmark_seed, 0, LARGEST_SEED)
        check_kernel_size(conv_kernel_size)
        check_choice("landmark_padding", landmark_padding, LANDMARK_PADDINGS)
        check_choice("landmarks", landmarks, LANDMARKS)
        check_choice("pinv", pinv, PINVS)
        check_choice("pinv_init", pinv_init, PINV_INITS)
        self.num_landmarks = min(num_landmarks, max_length)  # more change nothing
        self.num_pinv_iters = num_pinv_iters
        self.landmark_padding = landmark_padding
        self.landmarks = landmarks
        self.landmark_seed = landmark_seed
        self.pinv = pinv
        self.pinv_init = pinv_init
        self.conv_kernel: nnx.Param | jax.Array | None = nnx.data(None)
        if conv_kernel_size:
            bound = conv_kernel_size**-0.5
            shape = (conv_kernel_size, num_heads)
            kernel = jax.random.uniform(
                rngs.params(), shape, minval=-bound, maxval=bound
            )
            self.conv_kernel = nnx.Param(kernel)

    def per_head(self, length):
        return () if self.conv_kernel is None else (self.conv_kernel[...].T,)

    def attend(self, query, key, value, mask, precision, kernel=None):
        pinv = PINVS[self.pinv]
        if self.pinv == "iterative" and self.pinv_init == "per_batch":
            pinv = partial(iterative_pinv, scale_over=("heads", "batch"))
        out = nystrom(
            query,
            key,
            value,
            mask,
            num_landmarks=self.num_landmarks,
            num_pinv_iters=self.num_pinv_iters,
            landmark_padding=self.landmark_padding,
            landmarks=partial(LANDMARKS[self.landmarks], seed=self.landmark_seed),
            pinv=pinv,
            precision=precision,
            cross_attention=self.cross_attention,
        )
        if kernel is None:
            return out
        if self.cross_attention or len(query) != len(key):
            raise ValueError(
                "the convolution of V needs self-attention with T = S, got "
                f"cross_attention={self.cross_attention}, {len(query)} and {len(key)}"
            )
        return out + depthwise_conv(value, kernel, precision=precision)


def nystrom_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int = 64,
    num_pinv_iters: int = 6,
    conv_kernel: jax.Array | None = None,
    cross_attention: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
    **options: Any,
) -> jax.Array:
    """`NystromAttention` as a function, for any `attention_fn=…` of flax.

    Args:
      query, key, value, bias, mask, dropout_rng, …: as for every `Attention`.
      num_landmarks, num_pinv_iters, **options: as for `NystromAttention`.
      conv_kernel: [K, N], K odd, of the convolution of V, which needs T = S; or None.
      cross_attention: queries are of other tokens than keys: also with T = S, the mask
        says nothing of them.

    Returns:
      [B, T, N, H] in dtype.
    """
    if unknown := options.keys() - NystromAttention.defaults:
        raise TypeError(f"nystrom_attention() has no option {min(unknown)!r}")
    attention = NystromAttention(
        num_heads=query.shape[2],
        head_dim=query.shape[-1],
        max_length=max(num_landmarks, *key.shape),
        rngs=nnx.Rngs(),
        num_landmarks=num_landmarks,
        num_pinv_iters=num_pinv_iters,
        **options,
    )
    if conv_kernel is not None:
        check_kernel_size(conv_kernel.shape[0])
        if conv_kernel.shape[1:] != query.shape[2:3]:
            raise ValueError(
                f"conv_kernel must be [K, N] with N = {query.shape[2]} heads, got "
                f"{conv_kernel.shape}"
            )
        attention.conv_kernel = nnx.data(conv_kernel)
    attention.cross_attention = cross_attention
    return attention(
        query,
        key,
        value,
        bias,
        mask,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        module=module,
        is_causal=is_causal,
    )


def check_kernel_size(size: int) -> None:
    """Raises ValueError for an invalid kernel size."""
    if size < 0 or (size and size % 2 == 0):
        raise ValueError(f"conv_kernel_size must be odd, or 0 for none, got {size}")
