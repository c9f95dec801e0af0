"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With learned
E, F [k, max_length], k ≪ S:

    softmax(Q (E K)ᵀ / √H) · (F V)                                               (7)
"""

from typing import Any

import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_choice, check_range
from nystromformer.nystrom import attend
from nystromformer.ops import at_least_float32

# Whether F is another matrix than E, each head has its own, and all layers share them.
SHARING = {
    "none": (True, True, False),
    "head": (True, False, False),
    "key_value": (False, False, False),
    "layer": (False, False, True),
    "layerwise_per_head": (False, True, True),
}


class LinformerAttention(Attention):
    """Attention to k learned mixtures of the keys, in O((T + S) · k).

    A shorter input uses the first columns of the projections. They start as in the
    authors' code, with variance 1/(max_length + k), so that a projected key is about as
    long as a key; the N(0, 1/k) of the paper's theorem would saturate the softmax.

    Options:
      projection_dim: k ≤ max_length.
      sharing: "none": E for the keys and F for the values of each head; "head": E and F
        for all heads; "key_value": E = F for all heads; "layer": one for all layers
        too; "layerwise_per_head": E = F for each head and all layers, starting as
        N(0, 0.02²), as in the published comparison on the LRA.
    """

    size_option = "projection_dim"

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        projection_dim: int = 256,
        sharing: str = "key_value",
        **sizes: Any,
    ):
        super().__init__(rngs=rngs, **sizes)
        check_range("projection_dim", projection_dim, 1, self.max_length)
        check_choice("sharing", sharing, SHARING)
        apart, of_heads, self.shared_across_layers = SHARING[sharing]
        init = nnx.initializers.variance_scaling(
            1 / 2, "fan_avg", "uniform", batch_axis=(0,) if of_heads else ()
        )
        if sharing == "layerwise_per_head":
            init = nnx.initializers.normal(0.02)
        shape = (self.num_heads,) * of_heads + (projection_dim, self.max_length)
        self.key_projection = nnx.Param(init(rngs.params(), shape))
        own = nnx.Param(init(rngs.params(), shape)) if apart else nnx.data(None)
        self.value_projection = own

    def per_head(self, length):
        if length > self.max_length:
            sizes = f"length {length} are longer than max_length {self.max_length}"
            raise ValueError(f"keys of {sizes}, which linformer's projection is for")
        of_keys, of_values = self.key_projection, self.value_projection
        both = of_keys, of_keys if of_values is None else of_values
        shape = -1, of_keys.shape[-2], length
        return tuple(x[..., :length].reshape(shape) for x in both)

    def attend(self, query, key, value, mask, precision, of_keys, of_values):
        wide = at_least_float32(key.dtype)
        options = {"precision": precision, "preferred_element_type": wide}
        key, value = (
            jnp.matmul(projection.astype(x.dtype), x, **options)
            for projection, x in ((of_keys, key), (of_values, value))
        )
        key = (key * query.shape[-1] ** -0.5).astype(query.dtype)
        return attend(query, key, value.astype(query.dtype), precision=precision)
