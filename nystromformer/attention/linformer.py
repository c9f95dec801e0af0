"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With learned
E and F [k, max_length], k ≪ S:

    softmax(Q (E K)ᵀ / √H) · (F V)                                               (7)

Heads, layers, keys and values may share these matrices (section 4).
"""

from typing import Any, Unpack

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.attention.options import CommonArguments
from nystromformer.dot_product import attend
from nystromformer.precision import einsum
from nystromformer.validation import check_choice, check_range

SHARING = ("headwise", "key_value", "layerwise", "layerwise_per_head")


class LinformerAttention(Attention):
    """Attention to k learned mixtures of the keys, in O((T + S) · k).

    A shorter input uses the first columns of the projections. Unless `sharing` is
    "layerwise_per_head", they start as in the authors' code, with variance
    1/(max_length + k), so that a projected key is about as long as a key; the N(0, 1/k)
    of the paper's theorem would saturate the softmax.
    """

    size_option = "projection_dim"

    def __init__(
        self,
        *,
        projection_dim: int = 256,
        sharing: str = "key_value",
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention and its projections.

        Args:
          projection_dim: k, at most max_length.
          sharing: how heads, layers, keys and values share matrices. The first three
            are in section 4 of the paper, where 12 layers have 24, 12 and 1 matrices.
            "headwise": each layer has E and F, for all its heads.
            "key_value": each layer has one matrix, F = E.
            "layerwise": all layers of an `Encoder` share one matrix, F = E.
            "layerwise_per_head": each head has one matrix, F = E, for all layers. It
            starts as N(0, 0.02²). This is the form of the Nyströmformer's published
            comparison on the LRA.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        cause = f"max_length={self.max_length}"
        check_range("projection_dim", projection_dim, 1, self.max_length, cause)
        check_choice("sharing", sharing, SHARING)
        self.projection_dim = projection_dim
        self.sharing = sharing
        self.shared_across_layers = sharing in ("layerwise", "layerwise_per_head")

        shape = (projection_dim, self.max_length)
        initializer = nnx.initializers.variance_scaling(1 / 2, "fan_avg", "uniform")
        if sharing == "layerwise_per_head":
            shape = (self.num_heads, *shape)
            initializer = nnx.initializers.normal(0.02)
        rngs = common["rngs"]
        self.projection = nnx.Param(initializer(rngs.params(), shape, jnp.float32))
        self.value_projection: Any = nnx.data(None)  # None where F = E
        if sharing == "headwise":
            self.value_projection = nnx.Param(
                initializer(rngs.params(), shape, jnp.float32)
            )

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        """E, and F if it is a different matrix, [1 or N, k, S] each."""
        if length > self.max_length:
            raise ValueError(
                f"keys of length {length} are longer than the max_length "
                f"{self.max_length} that linformer's projection was made for"
            )
        projections = [self.projection]
        if self.value_projection is not None:
            projections.append(self.value_projection)
        shape = (-1, self.projection_dim, length)
        return tuple(matrix[..., :length].reshape(shape) for matrix in projections)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        key_projection: jax.Array,
        value_projection: jax.Array | None = None,
    ) -> jax.Array:
        key_projection = key_projection.astype(key.dtype)
        if value_projection is None:
            value_projection = key_projection
        else:
            value_projection = value_projection.astype(value.dtype)

        # The mask has no part here: padded keys and values are zero and add nothing.
        keys = einsum("ks,sh->kh", key_projection, key, precision)
        values = einsum("ks,sh->kh", value_projection, value, precision)
        scaled_keys = (keys * query.shape[-1] ** -0.5).astype(query.dtype)
        return attend(
            query, scaled_keys, values.astype(query.dtype), precision=precision
        )
