"""No attention: the bag of tokens, the floor that every attention has to pass."""

import jax
from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.masking import key_mask, refuse_weights, zero_padding


class NoAttention(Attention):
    """Returns V: every token attends to itself alone. Without parameters."""

    num_projections = 1

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float = 0.0,
        broadcast_dropout: bool = True,
        deterministic: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: nnx.Module | None = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """value [B, S, N, H] in dtype, zero where mask is False; needs T = S.

        Precision has nothing to act on.
        """
        refuse_weights(
            "none",
            dropout_rate=dropout_rate,
            deterministic=deterministic,
            module=module,
        )
        mask = key_mask(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
        if query.shape[1] != key.shape[1]:
            raise ValueError(
                "attention 'none' returns V and so needs T = S, got "
                f"{query.shape} and {key.shape}"
            )
        return zero_padding(query, key, value, mask)[2].astype(dtype or value.dtype)
