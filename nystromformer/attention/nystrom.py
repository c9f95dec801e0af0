"""Nyström attention: `nystrom` over heads and batch, and the convolution of V."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_seed, check_size
from nystromformer.convolution import depthwise_conv
from nystromformer.masking import key_mask, refuse_weights
from nystromformer.nystrom import check_options, nystrom


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
    segments: str = "valid",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
    inverse: str = "iterative",
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """Nyström attention, `nystrom` lifted over heads and batch, with the skip of V.

    Drops into `flax.nnx.MultiHeadAttention(attention_fn=…)` and
    `flax.linen.MultiHeadDotProductAttention(attention_fn=…)`.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend.
      num_landmarks: M ≥ 1. M ≥ the number of valid tokens is exact attention.
      num_pinv_iters: iterations towards the pseudo-inverse.
      conv_kernel: [K, N], K odd: depthwise convolution of V added to the output; needs
        T = S.
      segments, landmarks, landmark_seed, inverse: see `nystrom`.
      dropout_rng, broadcast_dropout: of attention dropout, which is not defined here.
      dropout_rate: must be 0 unless deterministic.
      deterministic: True = no dropout.
      dtype: of the products with T or S rows; None = the inputs'.
      precision: of the same products.
      module: must be None: there are no [T, S] weights to sow.
      is_causal: must be False.

    Returns:
      [B, T, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured, and for shapes and options that do not
        fit.
    """
    mask = key_mask(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
    kernel_size = 0 if conv_kernel is None else conv_kernel.shape[0]
    check_options(
        num_landmarks=num_landmarks,
        num_pinv_iters=num_pinv_iters,
        conv_kernel_size=kernel_size,
        segments=segments,
        landmarks=landmarks,
        inverse=inverse,
    )
    refuse_weights(
        "nystrom",
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        module=module,
    )
    if conv_kernel is not None and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"the convolution of V needs T = S, got {query.shape} and {key.shape}"
        )
    if conv_kernel is not None and conv_kernel.shape[1:] != query.shape[2:3]:
        raise ValueError(
            f"conv_kernel must be [K, N] with N = {query.shape[2]} heads, got "
            f"{conv_kernel.shape}"
        )
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = (x.astype(dtype) for x in (query, key, value))

    def one_head(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        kernel: jax.Array | None,
        mask: jax.Array | None,
    ) -> jax.Array:
        out = nystrom(
            query,
            key,
            value,
            mask,
            num_landmarks=num_landmarks,
            num_pinv_iters=num_pinv_iters,
            segments=segments,
            landmarks=landmarks,
            landmark_seed=landmark_seed,
            inverse=inverse,
            precision=precision,
        )
        if kernel is not None:
            out += depthwise_conv(value, kernel, mask, precision=precision)
        return out.astype(dtype)

    over_heads = jax.vmap(one_head, in_axes=(1, 1, 1, 1, None), out_axes=1)
    over_batch = jax.vmap(over_heads, in_axes=(0, 0, 0, None, 0))
    return over_batch(query, key, value, conv_kernel, mask)


class NystromAttention(Attention):
    """`nystrom_attention`; options as there, conv_kernel_size K odd or 0 for none.

    The kernel [K, N] starts as U(−1/√K, 1/√K), as in the published code.
    """

    size_option = "num_landmarks"
    defaults = {
        "num_landmarks": 128,
        "num_pinv_iters": 6,
        "conv_kernel_size": 35,  # the skip connection of V; 0 = none
        "segments": "valid",  # "padded": the published treatment of padding
        "landmarks": "segment_means",  # for study "random" tokens or "kmeans"
        "landmark_seed": 0,  # of the random tokens
        "inverse": "iterative",  # for study "exact" or "none"
    }

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
        num_landmarks: int = 64,
        num_pinv_iters: int = 6,
        conv_kernel_size: int = 0,
        segments: str = "valid",
        landmarks: str = "segment_means",
        landmark_seed: int = 0,
        inverse: str = "iterative",
    ):
        check_options(
            num_landmarks=num_landmarks,
            num_pinv_iters=num_pinv_iters,
            conv_kernel_size=conv_kernel_size,
            segments=segments,
            landmarks=landmarks,
            inverse=inverse,
        )
        check_size("num_landmarks", num_landmarks, max_length, max_length)
        check_seed("landmark_seed", landmark_seed)
        self.num_landmarks = num_landmarks
        self.num_pinv_iters = num_pinv_iters
        self.segments = segments
        self.landmarks = landmarks
        self.landmark_seed = landmark_seed
        self.inverse = inverse
        self.conv_kernel = nnx.data(None)
        if conv_kernel_size:
            bound = conv_kernel_size**-0.5
            shape = (conv_kernel_size, num_heads)
            kernel = jax.random.uniform(
                rngs.params(), shape, minval=-bound, maxval=bound
            )
            self.conv_kernel = nnx.Param(kernel)

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        return nystrom_attention(
            *inputs,
            num_landmarks=self.num_landmarks,
            num_pinv_iters=self.num_pinv_iters,
            conv_kernel=None if self.conv_kernel is None else self.conv_kernel[...],
            segments=self.segments,
            landmarks=self.landmarks,
            landmark_seed=self.landmark_seed,
            inverse=self.inverse,
            **flax,
        )
