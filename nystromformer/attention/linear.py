"""Linear attention: a feature map in place of the exponential.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with
Linear Attention", ICML 2020, without the causal mask.
"""

from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.masking import admit
from nystromformer.precision import at_least_float32


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
    wide = at_least_float32(value.dtype)
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
    query, key, value, mask = admit(
        "linear",
        query,
        key,
        value,
        bias,
        mask,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        module=module,
        is_causal=is_causal,
    )
    dtype, wide = value.dtype, at_least_float32(value.dtype)
    query_features, key_features = (
        elu_plus_one(x.astype(wide)).astype(dtype) for x in (query, key)
    )
    if mask is not None:  # φ(0) is 1, not 0
        key_features = jnp.where(mask[:, :, None, None], key_features, 0)
    out = kernel_attend(query_features, key_features, value, precision)
    return out.astype(dtype)


class LinearAttention(Attention):
    """`linear_attention`; without parameters or options."""

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        return linear_attention(*inputs, **flax)
