"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With a learned
E [k, max_length], k ≪ S, which keys and values share (there F = E):

    softmax(Q (E K)ᵀ / √H) · (E V)                                               (7)
"""

from typing import Unpack

import jax
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.attention.options import CommonArguments
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

    size_option = "projection_dim"

    def __init__(
        self,
        *,
        projection_dim: int = 256,
        sharing: str = "key_value",
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention and its projection.

        Args:
          projection_dim: k, at most max_length.
          sharing: "key_value": one E in each layer, for all heads.
            "layerwise_per_head", as in the published comparison on the LRA: one E for
            each head, shared by all layers, which starts as N(0, 0.02²).
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        check_range("projection_dim", projection_dim, 1, self.max_length)
        check_choice("sharing", sharing, SHARING)
        self.projection_dim = projection_dim
        self.sharing = sharing
        self.shared_across_layers = sharing == "layerwise_per_head"

        if sharing == "layerwise_per_head":
            initializer = nnx.initializers.normal(0.02)
            shape = (self.num_heads, projection_dim, self.max_length)
        else:
            initializer = nnx.initializers.variance_scaling(1 / 2, "fan_avg", "uniform")
            shape = (projection_dim, self.max_length)
        self.projection = nnx.Param(initializer(common["rngs"].params(), shape))

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        if length > self.max_length:
            raise ValueError(
                f"keys of length {length} are longer than the max_length "
                f"{self.max_length} that linformer's projection was made for"
            )
        num_rows = self.projection.shape[-2]
        projection = self.projection[..., :length]
        return (projection.reshape(-1, num_rows, length),)  # [1 or N, k, S]

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        projection: jax.Array,
    ) -> jax.Array:
        projection = projection.astype(key.dtype)
        keys = einsum("ks,sh->kh", projection, key, precision)
        values = einsum("ks,sh->kh", projection, value, precision)
        scaled_keys = (keys * query.shape[-1] ** -0.5).astype(query.dtype)
        return attend(
            query, scaled_keys, values.astype(query.dtype), precision=precision
        )
