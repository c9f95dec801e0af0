"""Efficient attention: softmax of the queries times softmax of the keys.

Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021: with
ρ_q(Q) a softmax over the features of each query and ρ_k(K) one over the tokens of each
feature of the keys, ρ_q(Q) (ρ_k(K)ᵀ V). Each row of ρ_q(Q) ρ_k(K)ᵀ sums to 1.
"""

import jax

from nystromformer.attention.base import Attention
from nystromformer.precision import at_least_float32, einsum


class EfficientAttention(Attention):
    """ρ_q(Q) (ρ_k(K)ᵀ V) in O((T + S) · H²). Without parameters or options."""

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        dtype = value.dtype
        accumulation_dtype = at_least_float32(dtype)
        is_valid = None if mask is None else mask[:, None]
        query_weights = jax.nn.softmax(query.astype(accumulation_dtype), axis=1)
        # With no valid token all weights are 0.
        key_weights = jax.nn.softmax(
            key.astype(accumulation_dtype), axis=0, where=is_valid
        )
        context = einsum("sk,sh->hk", key_weights.astype(dtype), value, precision)
        # The common part is not rounded, as in linear attention.
        common_value = context.mean(1)  # [H]
        context = (context - common_value[:, None]).astype(dtype)
        out = einsum("tk,hk->th", query_weights.astype(dtype), context, precision)
        return out + common_value[None]
