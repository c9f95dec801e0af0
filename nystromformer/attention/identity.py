"""No attention: each token and its place alone, which an attention should beat."""

import jax

from nystromformer.attention.base import Attention


class IdentityAttention(Attention):
    """Returns V, zero where mask is False; needs T = S. Without parameters."""

    num_projections = 1
    self_attention_only = True

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        return value
