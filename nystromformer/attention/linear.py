"""Linear attention: a feature map in place of the exponential.

Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with
Linear Attention", ICML 2020, without the causal mask.
"""

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.ops import at_least_float32, einsum, zeroed


def kernel_attend(
    query_features: jax.Array,
    key_features: jax.Array,
    value: jax.Array,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """φ(Q) (φ(K)ᵀ V) / (φ(Q) Σₛ φ(K)ₛ), eq. (5): O(S · R) for R features.

    φ(Q) [T, R] and φ(K) [S, R] are not negative, φ(K) is zero for padding; value [S, H]
    -> [T, H] in at least float32, zero where all weights are.
    """
    wide = at_least_float32(value.dtype)
    # [H, R], as XLA's CPU backend has no bfloat16 product for [R, H].
    context = einsum("sr,sh->hr", key_features, value, precision)
    if value.dtype != jnp.float16:  # which has no room for sums over thousands of keys
        context = context.astype(value.dtype)
    summed = einsum("tr,hr->th", query_features, context, precision)
    total = key_features.sum(0, dtype=wide)  # [R]
    weight = einsum("tr,r->t", query_features.astype(wide), total, precision)
    return summed / jnp.where(weight > 0, weight, 1)[:, None]


def elu_plus_one(x: jax.Array) -> jax.Array:
    """φ(x) = ELU(x) + 1, eq. (7), without the cancellation of −1 + 1 far below zero."""
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.minimum(x, 0)))


class LinearAttention(Attention):
    """Weights φ(q)·φ(k) / Σₛ φ(q)·φ(kₛ), φ = ELU + 1; without parameters or options."""

    def attend(self, query, key, value, mask, precision):
        wide = at_least_float32(value.dtype)
        query_features, key_features = (
            elu_plus_one(x.astype(wide)).astype(value.dtype) for x in (query, key)
        )
        key_features = zeroed(key_features, mask)  # φ(0) is 1, not 0
        return kernel_attend(query_features, key_features, value, precision)
