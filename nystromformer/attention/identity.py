"""No attention: each token and its place alone, which an attention should beat."""

from nystromformer.attention.base import Attention


class IdentityAttention(Attention):
    """Returns V, zero where mask is False; needs T = S. Without parameters."""

    num_projections = 1
    self_attention_only = True

    def attend(self, query, key, value, mask, precision):
        return value
