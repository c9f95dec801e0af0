"""Nyström attention with its one parameter, the depthwise convolution of V."""

import jax
from flax import nnx

from nystromformer.attention.base import Attention, check_seed, check_size
from nystromformer.nystrom import check_options, nystrom_attention


class NystromAttention(Attention):
    """`nystrom_attention`; options as there, conv_kernel_size K odd or 0 for none.

    The kernel [K, N] starts as U(−1/√K, 1/√K), as in the published code.
    """

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

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: nnx.Module | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """As `nystrom_attention`."""
        return nystrom_attention(
            query,
            key,
            value,
            bias,
            mask,
            num_landmarks=self.num_landmarks,
            num_pinv_iters=self.num_pinv_iters,
            conv_kernel=None if self.conv_kernel is None else self.conv_kernel[...],
            segments=self.segments,
            landmarks=self.landmarks,
            landmark_seed=self.landmark_seed,
            inverse=self.inverse,
            dropout_rng=dropout_rng,
            dropout_rate=dropout_rate,
            broadcast_dropout=broadcast_dropout,
            deterministic=deterministic,
            dtype=dtype,
            precision=precision,
            module=module,
            is_causal=is_causal,
        )
