"""Linformer: keys and values projected along the sequence to a fixed length.

Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. With learned
E, F [k, max_length], k ≪ S:

    softmax(Q (E K)ᵀ / √H) · (F V)                                               (7)
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.masking import admit
from nystromformer.nystrom import attend
from nystromformer.precision import at_least_float32

SHARING = ("head", "key_value", "layer")

# The authors' code: Xavier with gain 1/√2, variance 1/(max_length + k), so that a
# projected key is about as long as a key. (The N(0, 1/k) of the paper's theorem would
# make it √(max_length / k) times longer, and softmax start saturated.)
projection_init = nnx.initializers.variance_scaling(1 / 2, "fan_avg", "uniform")


def linformer_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    key_projection: jax.Array,
    value_projection: jax.Array | None = None,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """Attention to k learned mixtures of the keys, in O((T + S) · k).

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H], S ≤ max_length.
      value: [B, S, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, S], True = attend. What it
        excludes is zero before the projection. With T = S it is taken for
        self-attention: queries it excludes are padding; their rows have no meaning.
      key_projection: E [k, max_length]; a shorter input uses the first S columns.
      value_projection: F [k, max_length]; None = E.
      dropout_rng, broadcast_dropout: of attention dropout, which is not defined here.
      dropout_rate: must be 0 unless deterministic.
      deterministic: True = no dropout.
      dtype: of the large products and the output; None = the inputs'.
      precision: of the large products.
      module: must be None: there are no [T, S] weights to sow.
      is_causal: must be False.

    Returns:
      [B, T, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured, and for shapes that do not fit.
    """
    query, key, value, mask = admit(
        "linformer",
        query,
        key,
        value,
        bias,
        mask,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        module=module,
        is_causal=is_causal,
    )
    if value_projection is None:
        value_projection = key_projection
    if key_projection.shape != value_projection.shape or key_projection.ndim != 2:
        raise ValueError(
            "key_projection and value_projection must both be [k, max_length], got "
            f"{key_projection.shape} and {value_projection.shape}"
        )
    length, max_length = key.shape[1], key_projection.shape[1]
    if length > max_length:
        raise ValueError(
            f"keys of length {length} are longer than the max_length {max_length} "
            "that linformer's projection was made for"
        )

    dtype = value.dtype

    def project(projection: jax.Array, x: jax.Array, scale: float = 1) -> jax.Array:
        projected = jnp.einsum(
            "ks,bsnh->bknh",
            projection[:, :length].astype(dtype),
            x,
            precision=precision,
            preferred_element_type=at_least_float32(dtype),
        )
        return (scale * projected).astype(dtype)

    key = project(key_projection, key, query.shape[-1] ** -0.5)
    value = project(value_projection, value)

    def one_head(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return attend(query, key, value, precision=precision).astype(dtype)

    return jax.vmap(jax.vmap(one_head, in_axes=1, out_axes=1))(query, key, value)


class LinformerAttention(Attention):
    """`linformer_attention` with its projections.

    Options:
      projection_dim: k ≤ max_length.
      sharing: what shares a projection, always over heads. "head": E for keys and F
        for values; "key_value": E = F; "layer": E = F, one for all layers, which the
        encoder holds. The published comparison on the LRA shares E = F over layers,
        but has one for each head: with its two layers and two heads "key_value" has as
        many parameters.
    """

    size_option = "projection_dim"
    defaults = {
        "projection_dim": 256,  # at most the length
        "sharing": "key_value",  # one projection a layer for keys and values
    }

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
        projection_dim: int = 256,
        sharing: str = "key_value",
    ):
        if not 1 <= projection_dim <= max_length:
            raise ValueError(
                f"projection_dim must be from 1 to max_length {max_length}, got "
                f"{projection_dim}"
            )
        if sharing not in SHARING:
            raise ValueError(f"sharing must be one of {SHARING}, got {sharing!r}")
        self.shared_across_layers = sharing == "layer"
        shape = (projection_dim, max_length)
        self.key_projection = nnx.Param(projection_init(rngs.params(), shape))
        self.value_projection = nnx.data(None)
        if sharing == "head":
            self.value_projection = nnx.Param(projection_init(rngs.params(), shape))

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        of_values = self.value_projection
        return linformer_attention(
            *inputs,
            key_projection=self.key_projection[...],
            value_projection=None if of_values is None else of_values[...],
            **flax,
        )
