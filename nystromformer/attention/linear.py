"""Linear attention: a feature map in place of the exponential.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with
Linear Attention", ICML 2020, without the causal mask.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.masking import key_mask, refuse_weights, zero_padding


def kernel_attend(
    query_features: jax.Array,
    key_features: jax.Array,
    value: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """φ(Q) (φ(K)ᵀ V) / (φ(Q) Σₛ φ(K)ₛ), eq. (5): O(S · R) for R features.

    Args:
      query_features: φ(Q) [B, T, N, R], not negative.
      key_features: φ(K) [B, S, N, R], not negative, zero for keys that do not count.
      value: [B, S, N, H].
      precision: of the large products; they accumulate in at least float32.

    Returns:
      [B, T, N, H] in at least float32, zero where all weights are.
    """
    wide = jnp.promote_types(value.dtype, jnp.float32)
    product = {"precision": precision, "preferred_element_type": wide}
    # [B, N, H, R], as XLA's CPU backend has no bfloat16 product for [B, N, R, H].
    context = jnp.einsum("bsnr,bsnh->bnhr", key_features, value, **product)
    summed = jnp.einsum(
        "btnr,bnhr->btnh", query_features, context.astype(value.dtype), **product
    )
    total = key_features.sum(1, dtype=wide)  # [B, N, R]
    weight = jnp.einsum("btnr,bnr->btn", query_features.astype(wide), total, **product)
    return summed / jnp.where(weight > 0, weight, 1)[..., None]


def elu_plus_one(x: jax.Array) -> jax.Array:
    """φ(x) = ELU(x) + 1, eq. (7), without the cancellation of −1 + 1 far below zero."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


def linear_attention(
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
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """Attention with weights φ(q)·φ(k) / Σₛ φ(q)·φ(kₛ), φ = ELU + 1.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend. With T = S
        it is taken for self-attention: queries it excludes are padding, and their rows
        have no meaning.
      dropout_rng, broadcast_dropout: of attention dropout, which is not defined here.
      dropout_rate: must be 0 unless deterministic.
      deterministic: True = no dropout.
      dtype: of the large products and the output; None = the inputs'.
      precision: of the large products.
      module: must be None: there are no [T, S] weights to sow.
      is_causal: must be False.

    Returns:
      [B, T, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured, and for shapes that do not fit.
    """
    mask = key_mask(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
    refuse_weights(
        "linear",
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        module=module,
    )
    dtype = dtype or jnp.result_type(query, key, value)
    query, key, value = zero_padding(query, key, value, mask)
    wide = jnp.promote_types(dtype, jnp.float32)
    query_features, key_features = (
        elu_plus_one(x.astype(dtype).astype(wide)).astype(dtype) for x in (query, key)
    )
    if mask is not None:  # φ(0) is 1, not 0
        key_features = jnp.where(mask[:, :, None, None], key_features, 0)
    out = kernel_attend(query_features, key_features, value.astype(dtype), precision)
    return out.astype(dtype)


class LinearAttention(Attention):
    """`linear_attention`; without parameters or options."""

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
        """As `linear_attention`."""
        return linear_attention(
            query,
            key,
            value,
            bias,
            mask,
            dropout_rng=dropout_rng,
            dropout_rate=dropout_rate,
            broadcast_dropout=broadcast_dropout,
            deterministic=deterministic,
            dtype=dtype,
            precision=precision,
            module=module,
            is_causal=is_causal,
        )
