"""Linear attention: a feature map in place of the exponential.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with
Linear Attention", ICML 2020, without the causal mask.
"""

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.masks import zero_masked
from nystromformer.precision import at_least_float32, einsum


def kernel_attend(
    query_features: jax.Array,
    key_features: jax.Array,
    value: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """φ(Q) (φ(K)ᵀ V) / (φ(Q) Σₛ φ(K)ₛ), eq. (5): O(S · R) for R features.

    Args:
      query_features: φ(Q) [T, R], not negative.
      key_features: φ(K) [S, R], not negative, and zero for padding.
      value: [S, E].
      precision: the precision of the products.

    Returns:
      [T, E] in at least float32; zero where all weights are zero.
    """
    accumulation_dtype = at_least_float32(value.dtype)
    feature_sums = key_features.sum(0, dtype=accumulation_dtype)  # [R]
    # The context is [E, R], as XLA's CPU backend has no bfloat16 product for [R, E].
    context = einsum("sr,se->er", key_features, value, precision)

    # The weights of a query sum to 1. What the values have in common is therefore added
    # at the end: it would be rounded with the context, and the gradients of queries and
    # keys, which depend on the differences between values, would drown in that.
    total = feature_sums.sum()
    common_value = context.sum(1) / jnp.where(total == 0, 1, total)  # [E]
    context = context - jnp.outer(common_value, feature_sums)
    # float16 has too small a range for sums over thousands of keys.
    if value.dtype != jnp.float16:
        context = context.astype(value.dtype)
    numerator = einsum("tr,er->te", query_features, context, precision)

    denominator = einsum(
        "tr,r->t", query_features.astype(accumulation_dtype), feature_sums, precision
    )[:, None]
    is_zero = denominator == 0
    out = numerator / jnp.where(is_zero, 1, denominator) + common_value[None]
    return jnp.where(is_zero, 0, out)


def elu_plus_one(x: jax.Array) -> jax.Array:
    """φ(x) = ELU(x) + 1, eq. (7), without the cancellation of −1 + 1 far below zero."""
    # `minimum` in place of the inner `where` would halve the gradient at 0.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


class LinearAttention(Attention):
    """Weights φ(q)·φ(k) / Σₛ φ(q)·φ(kₛ), φ = ELU + 1; without parameters or options."""

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        dtype = value.dtype
        feature_dtype = at_least_float32(dtype)
        query_features = elu_plus_one(query.astype(feature_dtype)).astype(dtype)
        key_features = elu_plus_one(key.astype(feature_dtype)).astype(dtype)
        # Padded keys are zero, and φ(0) is 1.
        key_features = zero_masked(key_features, mask)
        return kernel_attend(query_features, key_features, value, precision)
