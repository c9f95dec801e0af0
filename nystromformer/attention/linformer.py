"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With a learned
E [k, max_length], k ≪ S, which keys and values share (there F = E):

    softmax(Q (E K)ᵀ / √H) · (E V)                                               (7)
"""

from typing import Any

from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.dot_product import attend
from nystromformer.ops import einsum
from nystromformer.validation import check_choice, check_range

SHARING = ("key_value", "layerwise_per_head")


class LinformerAttention(Attention):
    """Attention to k learned mixtures of the keys, in O((T + S) · k).

    A shorter input uses the first columns of the projection. It starts as in the
    authors' code, with variance 1/(max_length + k), so that a projected key is about as
    long as a key; the N(0, 1/k) of the paper's theorem would saturate the softmax.
    """

    projection_dim: int = 256  # k ≤ max_length
    # "key_value": one E in each layer; "layerwise_per_head", as in the published
    # comparison on the LRA: one for each head, for all layers, from N(0, 0.02²).
    sharing: str = "key_value"

    size_option = "projection_dim"

    def __init__(self, *, rngs: nnx.Rngs, **options: Any):
        super().__init__(rngs=rngs, **options)
        check_range("projection_dim", self.projection_dim, 1, self.max_length)
        check_choice("sharing", self.sharing, SHARING)
        shape = self.projection_dim, self.max_length
        init = nnx.initializers.variance_scaling(1 / 2, "fan_avg", "uniform")
        self.shared_across_layers = self.sharing == "layerwise_per_head"
        if self.shared_across_layers:
            init, shape = nnx.initializers.normal(0.02), (self.num_heads, *shape)
        self.projection = nnx.Param(init(rngs.params(), shape))

    def per_head(self, length):
        if length > self.max_length:
            sizes = f"length {length} are longer than max_length {self.max_length}"
            raise ValueError(f"keys of {sizes}, which linformer's projection is for")
        shape = -1, self.projection.shape[-2], length
        return (self.projection[..., :length].reshape(shape),) * 2

    def attend(self, query, key, value, mask, precision, of_keys, of_values):
        key, value = (
            einsum("ks,sh->kh", projection.astype(x.dtype), x, precision)
            for projection, x in ((of_keys, key), (of_values, value))
        )
        key = (key * query.shape[-1] ** -0.5).astype(query.dtype)
        return attend(query, key, value.astype(query.dtype), precision=precision)
