"""Efficient attention: softmax of the queries times softmax of the keys.

Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021: with
ρ_q(Q) a softmax over the features of each query and ρ_k(K) one over the tokens of each
feature of the keys, ρ_q(Q) (ρ_k(K)ᵀ V). Each row of ρ_q(Q) ρ_k(K)ᵀ sums to 1.
"""

import jax

from nystromformer.attention.base import Attention
from nystromformer.ops import at_least_float32, einsum


class EfficientAttention(Attention):
    """ρ_q(Q) (ρ_k(K)ᵀ V) in O((T + S) · H²). Without parameters or options."""

    def attend(self, query, key, value, mask, precision):
        dtype, wide = value.dtype, at_least_float32(value.dtype)
        where = None if mask is None else mask[:, None]
        of_queries = jax.nn.softmax(query.astype(wide), axis=1).astype(dtype)
        # With no valid token all weights are 0.
        of_keys = jax.nn.softmax(key.astype(wide), axis=0, where=where).astype(dtype)
        context = einsum("sk,sh->hk", of_keys, value, precision)  # [H, H]
        return einsum("tk,hk->th", of_queries, context.astype(dtype), precision)
