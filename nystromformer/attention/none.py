"""No attention: the bag of tokens, the floor that every attention has to pass."""

from typing import Any

import jax

from nystromformer.attention.base import Attention
from nystromformer.masking import admit


class NoAttention(Attention):
    """Returns V, zero where mask is False; needs T = S. Without parameters."""

    num_projections = 1

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        names = ("dropout_rate", "deterministic", "dtype", "module", "is_causal")
        query, key, value, _ = admit(
            "none", *inputs, **{name: flax[name] for name in names}
        )
        if query.shape[1] != key.shape[1]:
            raise ValueError(
                "attention 'none' returns V and so needs T = S, got "
                f"{query.shape} and {key.shape}"
            )
        return value
