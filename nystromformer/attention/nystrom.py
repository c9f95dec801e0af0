"""Nyström attention: `nystrom` over heads and batch, and the convolution of V.

Letters: B batch, T query length, S key length, N heads, H head dim, K kernel size.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.blocks import neighbourhoods
from nystromformer.landmarks import LANDMARKS, PINVS
from nystromformer.nystrom import LANDMARK_PADDINGS, iterative_pinv, nystrom
from nystromformer.ops import einsum
from nystromformer.validation import check_choice, check_range

PINV_INITS = ("per_matrix", "per_batch")


def depthwise_conv(
    value: jax.Array, kernel: jax.Array, *, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """The skip connection of V: one odd kernel along the sequence for all of H.

    Output t = Σₖ kernel[k] · value[t + k − (K − 1)/2]. A block of outputs is a banded
    (Toeplitz) matrix times the block of inputs with its margins: matmuls on any device.

    value [S, H], zero where it does not count, and kernel [K], K odd -> [S, H].
    """
    length, head_dim = value.shape
    size = kernel.shape[0]
    check_kernel_size(size)
    margin = size // 2
    block = max(32, margin)
    windows = neighbourhoods(value, block, margin)  # [C, block + 2 margin, H]
    offsets = jnp.arange(block + 2 * margin)[None, :] - jnp.arange(block)[:, None]
    inside = (offsets >= 0) & (offsets < size)
    band = jnp.where(inside, kernel[jnp.clip(offsets, 0, size - 1)], 0)
    out = einsum("tw,bwh->bth", band.astype(value.dtype), windows, precision)
    return out.reshape(-1, head_dim)[:length].astype(value.dtype)


def check_kernel_size(size: int) -> None:
    """Raises ValueError for an invalid kernel size."""
    if size < 0 or (size and size % 2 == 0):
        raise ValueError(f"conv_kernel_size must be odd, or 0 for none, got {size}")


class NystromAttention(Attention):
    """Nyström attention, eq. (13), and the convolution of V.

    In cross attention with a mask pass `cross_attention=True`: where T = S, landmarks
    would else leave out the queries in the places of masked keys.
    """

    num_landmarks: int = 64  # M ≥ 1; M ≥ the number of valid tokens is exact attention
    num_pinv_iters: int = 6  # iterations towards the pseudo-inverse
    # K odd, or 0 for none. The kernel [K, N] of the skip connection starts as
    # U(−1/√K, 1/√K), as in the published code.
    conv_kernel_size: int = 0
    landmark_padding: str = "mask"  # or "count", the published treatment of padding
    landmarks: str = "segment_means"  # a name in `landmarks.LANDMARKS`
    landmark_seed: int = 0  # of the tokens drawn
    pinv: str = "iterative"  # a name in `landmarks.PINVS`
    # Z₀ scaled "per_matrix" by its own norms, or, as published, "per_batch" by the
    # largest of the batch: an example then depends on its neighbours.
    pinv_init: str = "per_matrix"

    size_option = "num_landmarks"
    padding_sensitive = {"landmark_padding": "count"}
    batch_sensitive = {"pinv_init": "per_batch"}
    defaults = {"conv_kernel_size": 35}

    def __init__(self, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(rngs=rngs, **options)
        check_range("num_landmarks", self.num_landmarks, 1)
        check_range("num_pinv_iters", self.num_pinv_iters, 0)
        check_kernel_size(self.conv_kernel_size)
        check_choice("landmark_padding", self.landmark_padding, LANDMARK_PADDINGS)
        check_choice("landmarks", self.landmarks, LANDMARKS)
        check_choice("pinv", self.pinv, PINVS)
        check_choice("pinv_init", self.pinv_init, PINV_INITS)
        self.conv_kernel: Any = nnx.data(None)
        if size := self.conv_kernel_size:
            key, shape, bound = rngs.params(), (size, self.num_heads), size**-0.5
            drawn = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
            self.conv_kernel = nnx.Param(drawn)

    def per_head(self, length):
        return () if self.conv_kernel is None else (self.conv_kernel[...].T,)

    def attend(self, query, key, value, mask, precision, kernel=None):
        pinv = PINVS[self.pinv]
        if self.pinv == "iterative" and self.pinv_init == "per_batch":
            pinv = partial(iterative_pinv, scale_over=("heads", "batch"))
        out = nystrom(
            *(query, key, value, mask),
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
            sizes = f"got T = {len(query)} and S = {len(key)}, or cross attention"
            raise ValueError(f"the convolution of V needs self-attention, {sizes}")
        convolved = depthwise_conv(value, kernel, precision=precision)
        return out + convolved.astype(out.dtype)


def nystrom_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    num_landmarks: int = 64,
    conv_kernel: jax.Array | None = None,
    cross_attention: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = False,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
    **options: Any,
) -> jax.Array:
    """`NystromAttention` as a function, for any `attention_fn=…` of flax.

    Arguments and result are those of every `Attention`, the options, with defaults,
    those of `NystromAttention`. `conv_kernel` [K, N], odd K, convolves V (T = S). In
    cross attention with a mask pass `cross_attention=True`, in case T = S.
    """
    if "conv_kernel_size" in options:
        raise ValueError("conv_kernel_size: pass conv_kernel [K, N], the parameter")
    attention = NystromAttention(
        num_heads=query.shape[2],
        head_dim=query.shape[-1],
        max_length=key.shape[1],
        rngs=nnx.Rngs(),
        num_landmarks=num_landmarks,
        cross_attention=cross_attention,
        **options,
    )
    if conv_kernel is not None and conv_kernel.shape[1:] != query.shape[2:3]:
        raise ValueError(f"conv_kernel must be [K, N], got {conv_kernel.shape}")
    attention.conv_kernel = nnx.data(conv_kernel)
    return attention(
        *(query, key, value, bias, mask),
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        module=module,
        is_causal=is_causal,
    )
