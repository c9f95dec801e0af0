"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With learned
E, F [k, max_length], k ≪ S:

    softmax(Q (E K)ᵀ / √H) · (F V)                                               (7)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_choice, check_range
from nystromformer.nystrom import attend
from nystromformer.ops import at_least_float32

SHARING = ("none", "head", "key_value", "layer", "layerwise_per_head")


# The authors' code: Xavier with gain 1/√2, variance 1/(max_length + k), so that a
# projected key is about as long as a key. (The N(0, 1/k) of the paper's theorem would
# make it √(max_length / k) times longer, and softmax start saturated.)
def projection_init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """[k, max_length] or [N, k, max_length]."""
    scaling = nnx.initializers.variance_scaling
    heads = tuple(range(len(shape) - 2))
    return scaling(1 / 2, "fan_avg", "uniform", batch_axis=heads)(key, shape)


released_init = nnx.initializers.normal(0.02)


class LinformerAttention(Attention):
    """Attention to k learned mixtures of the keys, in O((T + S) · k).

    A shorter input uses the first columns of the projections.

    Options:
      projection_dim: k ≤ max_length.
      sharing: what shares a projection. "none": E for the keys and F for the values of
        each head; "head": E and F, for all heads; "key_value": E = F for all heads;
        "layer": the same, one for all layers, which the encoder holds; "layerwise_per_head":
        E = F for each head, shared by all layers, and starting as N(0, 0.02): the form
        of the published comparison on the LRA.
    """

    size_option = "projection_dim"

    def __init__(
        self,
        *,
        num_heads: int,
        max_length: int,
        rngs: nnx.Rngs,
        projection_dim: int = 256,
        sharing: str = "key_value",
        **sizes: Any,
    ):
        check_range("projection_dim", projection_dim, 1, max_length, max_length)
        check_choice("sharing", sharing, SHARING)
        self.num_heads = num_heads
        self.max_length = max_length
        self.shared_across_layers = sharing in ("layer", "layerwise_per_head")
        shape = (projection_dim, max_length)
        if sharing in ("none", "layerwise_per_head"):
            shape = (num_heads, *shape)
        init = released_init if sharing == "layerwise_per_head" else projection_init
        self.key_projection = nnx.Param(init(rngs.params(), shape))
        self.value_projection = nnx.data(None)
        if sharing in ("none", "head"):
            self.value_projection = nnx.Param(init(rngs.params(), shape))

    def per_head(self, length):
        if length > self.max_length:
            raise ValueError(
                f"keys of length {length} are longer than the max_length "
                f"{self.max_length} that linformer's projection was made for"
            )
        of_keys = of_values = self.key_projection[...]
        if self.value_projection is not None:
            of_values = self.value_projection[...]
        shape = self.num_heads, of_keys.shape[-2], length
        return tuple(
            jnp.broadcast_to(x[..., :length], shape) for x in (of_keys, of_values)
        )

    def attend(self, query, key, value, mask, precision, of_keys, of_values):
        def project(projection: jax.Array, x: jax.Array, scale: float) -> jax.Array:
            projected = jnp.matmul(
                projection.astype(x.dtype),
                x,
                precision=precision,
                preferred_element_type=at_least_float32(x.dtype),
            )
            return (scale * projected).astype(x.dtype)

        key = project(of_keys, key, query.shape[-1] ** -0.5)
        return attend(query, key, project(of_values, value, 1.0), precision=precision)
