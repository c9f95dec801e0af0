"""Nyström attention: `nystrom` over heads and batch, and the convolution of V.

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim,
M landmarks, K kernel size.
"""

from functools import partial
from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_shapes
from nystromformer.attention.options import CommonArguments
from nystromformer.blocks import to_blocks_with_margins
from nystromformer.dot_product import attend
from nystromformer.fused import attend_fused_head
from nystromformer.landmarks import LANDMARKS
from nystromformer.nystrom import LANDMARK_PADDINGS, nystrom
from nystromformer.pinv import PINVS, iterative_pinv
from nystromformer.precision import einsum
from nystromformer.validation import check_choice, check_kernel_size, check_range

PINV_INITS = ("per_matrix", "per_batch")


def depthwise_conv(
    value: jax.Array, kernel: jax.Array, *, precision: jax.lax.PrecisionLike = None
) -> jax.Array:
    """Convolves the values of one head along the sequence: the skip connection of V.

    Output t is Σₖ kernel[k] · value[t + k − (K − 1)/2], with zeros outside the
    sequence. A block of outputs is a banded (Toeplitz) matrix times the block of inputs
    with its margins, so that any device computes it by matrix products.

    Args:
      value: [S, E], zero for padding.
      kernel: [K], K odd, one kernel for all E features.
      precision: the precision of the product.

    Returns:
      [S, E] in the dtype of value.
    """
    length, head_dim = value.shape
    kernel_size = kernel.shape[0]
    margin = kernel_size // 2
    block_size = max(32, margin)
    # [C, block + 2 margin, H]
    windows = to_blocks_with_margins(value, block_size, margin)

    # Row t of the band has the kernel from column t on, as column 0 lies `margin`
    # tokens in front of the block.
    columns = jnp.arange(block_size + 2 * margin)[None, :]
    kernel_index = columns - jnp.arange(block_size)[:, None]
    is_inside = (kernel_index >= 0) & (kernel_index < kernel_size)
    entries = kernel[jnp.clip(kernel_index, 0, kernel_size - 1)]
    band = jnp.where(is_inside, entries, 0).astype(value.dtype)

    out = einsum("tw,bwh->bth", band, windows, precision)
    return out.reshape(-1, head_dim)[:length].astype(value.dtype)


class NystromAttention(Attention):
    """Nyström attention, eq. (13), and the convolution of V."""

    sums_over_queries = True
    size_option = "num_landmarks"
    padding_sensitive = {"landmark_padding": "count"}
    batch_sensitive = {"pinv_init": "per_batch"}
    paper_options = {"conv_kernel_size": 35}

    def __init__(
        self,
        *,
        num_landmarks: int = 64,
        num_pinv_iters: int = 6,
        conv_kernel_size: int = 0,
        landmark_padding: str = "mask",
        landmarks: str = "segment_means",
        landmark_seed: int = 0,
        pinv: str = "iterative",
        pinv_init: str = "per_matrix",
        pinv_kernel: bool = False,
        fused: bool = False,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention, and the kernel if it has a convolution.

        Args:
          num_landmarks: M ≥ 1. Attention is exact if M ≥ the length, and with
            landmark_padding="mask" also if M ≥ the number of valid tokens.
          num_pinv_iters: the iterations towards the pseudo-inverse.
          conv_kernel_size: K odd, or 0 for no convolution. The kernel [K, N] of the
            skip connection starts as U(−1/√K, 1/√K), as in the published code.
          landmark_padding: "mask", or "count" for the published treatment of padding.
          landmarks: a name in `nystromformer.landmarks.LANDMARKS`: "segment_means",
            "random" or "kmeans".
          landmark_seed: decides, with the number of valid tokens, which tokens random
            landmarks are. They are the same in every layer, head, example and step.
          pinv: a name in `nystromformer.pinv.PINVS`: "iterative", "exact" or
            "identity".
          pinv_init: "per_matrix" scales Z₀ by the norms of its own matrix. "per_batch"
            scales it by the largest norms of the batch, as published, and an example
            then depends on its neighbours.
          pinv_kernel: whether an NVIDIA GPU does all iterations in one kernel where it
            can: 16, 32 or 64 landmarks, one device; see `nystromformer.pinv_kernel`.
          fused: whether cuDNN's kernel computes the attentions of landmarks and to them
            where it can, on NVIDIA GPUs in half precision; see `nystromformer.fused`.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        check_range("num_landmarks", num_landmarks, 1)
        check_range("num_pinv_iters", num_pinv_iters, 0)
        check_kernel_size("conv_kernel_size", conv_kernel_size)
        check_choice("landmark_padding", landmark_padding, LANDMARK_PADDINGS)
        check_choice("landmarks", landmarks, LANDMARKS)
        check_choice("pinv", pinv, PINVS)
        check_choice("pinv_init", pinv_init, PINV_INITS)
        if pinv_kernel and pinv != "iterative":
            raise ValueError(
                "pinv_kernel=True is a kernel of the iterations, and has no effect on "
                f"pinv={pinv!r}: leave it out, or take pinv='iterative'"
            )
        self.num_landmarks = num_landmarks
        self.num_pinv_iters = num_pinv_iters
        self.conv_kernel_size = conv_kernel_size
        self.landmark_padding = landmark_padding
        self.landmarks = landmarks
        self.landmark_seed = landmark_seed
        self.pinv = pinv
        self.pinv_init = pinv_init
        self.pinv_kernel = pinv_kernel
        self.fused = fused

        self.conv_kernel: Any = nnx.data(None)
        if conv_kernel_size > 0:
            self.conv_kernel = _new_conv_kernel(
                conv_kernel_size, self.num_heads, common["rngs"]
            )

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        if self.conv_kernel is None:
            return ()
        return (self.conv_kernel[...].T,)  # [N, K]

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        kernel: jax.Array | None = None,
        *,
        query_mask: jax.Array | None = None,
        is_self_attention: bool = False,
    ) -> jax.Array:
        invert = PINVS[self.pinv]
        if self.pinv == "iterative":
            axes = ("heads", "batch") if self.pinv_init == "per_batch" else ()
            invert = partial(
                iterative_pinv, scale_over=axes, in_one_kernel=self.pinv_kernel
            )
        out = nystrom(
            query,
            key,
            value,
            mask,
            query_mask=query_mask,
            is_self_attention=is_self_attention,
            num_landmarks=self.num_landmarks,
            num_pinv_iters=self.num_pinv_iters,
            landmark_padding=self.landmark_padding,
            # Of "segment_means" it is the core's own function.
            make_landmarks=partial(LANDMARKS[self.landmarks], seed=self.landmark_seed),
            invert=invert,
            precision=precision,
            # cuDNN's kernel rounds what it returns to the dtype of the inputs.
            attend_head=attend_fused_head if self.fused else attend,
        )
        if kernel is None:
            return out
        convolved_value = depthwise_conv(value, kernel, precision=precision)
        return out + convolved_value.astype(out.dtype)

    def _check_sizes(
        self,
        query: jax.Array,
        key: jax.Array,
        query_mask: jax.typing.ArrayLike | None,
    ) -> None:
        super()._check_sizes(query, key, query_mask)
        is_cross = query.shape[1] != key.shape[1] or query_mask is not None
        if self.conv_kernel is not None and is_cross:
            raise ValueError(
                "the convolution of V needs self-attention, with T = S and no "
                f"query_mask, got {query.shape} and {key.shape}: take no kernel"
            )


def _new_conv_kernel(size: int, num_heads: int, rngs: nnx.Rngs) -> nnx.Param:
    """A kernel [K, N] for the convolution of V, uniform within ±1/√K."""
    bound = size**-0.5
    kernel = jax.random.uniform(
        rngs.params(),
        shape=(size, num_heads),
        dtype=jnp.float32,
        minval=-bound,
        maxval=bound,
    )
    return nnx.Param(kernel)


def nystrom_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    query_mask: jax.typing.ArrayLike | None = None,
    num_landmarks: int = 64,
    num_pinv_iters: int = 6,
    conv_kernel: jax.Array | None = None,
    landmark_padding: str = "mask",
    landmarks: str = "segment_means",
    landmark_seed: int = 0,
    pinv: str = "iterative",
    pinv_init: str = "per_matrix",
    pinv_kernel: bool = False,
    fused: bool = False,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = False,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """`NystromAttention` as a function, for any `attention_fn=…` of flax.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, E].
      mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend.
      query_mask: bool that broadcasts to [B, 1, 1, T], True = the query counts in the
        landmarks of queries. None: with T = S this is self-attention and `mask` says
        it; with T ≠ S every query counts. So in cross attention give it, and True where
        every query counts.
      num_landmarks, num_pinv_iters, landmark_padding, landmarks, landmark_seed, pinv,
        pinv_init, pinv_kernel, fused: the options of `NystromAttention`.
      conv_kernel: [K, N], K odd, the kernel of the convolution of V, which needs T = S;
        None for no convolution.
      bias, dropout_rng, dropout_rate, broadcast_dropout, deterministic, dtype,
        precision, module, is_causal: the arguments of `Attention.__call__`.

    Returns:
      [B, T, N, E] in dtype.

    Raises:
      ValueError: as `NystromAttention` and `Attention.__call__`, or a kernel with
        a wrong shape or in cross attention.
    """
    options = {
        "num_landmarks": num_landmarks,
        "num_pinv_iters": num_pinv_iters,
        "landmark_padding": landmark_padding,
        "landmarks": landmarks,
        "landmark_seed": landmark_seed,
        "pinv": pinv,
        "pinv_init": pinv_init,
        "pinv_kernel": pinv_kernel,
        "fused": fused,
    }
    NystromAttention.check_options(options)
    check_shapes(query, key, value)
    # An object of the class, so that the function shares all checks with it. The call
    # below compiles one program for equal options and shapes, and keeps it.
    attention = NystromAttention(
        num_heads=query.shape[2],
        head_dim=query.shape[-1],
        max_length=key.shape[1],
        rngs=nnx.Rngs(),
        **options,
    )
    if conv_kernel is not None:
        shape = conv_kernel.shape
        if shape[1:] != query.shape[2:3] or shape[0] % 2 == 0:
            raise ValueError(
                f"conv_kernel must be [K, N], K odd and here N = {query.shape[2]}, got "
                f"{shape}"
            )
    attention.conv_kernel = nnx.data(conv_kernel)
    return attention(
        query,
        key,
        value,
        bias,
        mask,
        query_mask=query_mask,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        broadcast_dropout=broadcast_dropout,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        module=module,
        is_causal=is_causal,
    )
