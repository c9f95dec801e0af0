"""The inputs of the attention of each layer of a model.

Letters: B examples, L tokens, N heads, H head dim.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.errors import ConfigError


class AttentionInputs(NamedTuple):
    """The inputs of the attention of one layer.

    query, key, value: [B, L, N, H]; float32 as `record_qkv` gives them.
    mask: bool [B, L], False in the padding.
    """

    query: Any
    key: Any
    value: Any
    mask: Any

    def example(self, index: int) -> list[np.ndarray]:
        """Returns query, key and value float64 [L, N, H], and mask [L] of an example.

        They are zero in the padding.
        """
        mask = self.mask[index]
        arrays = [
            np.where(mask[:, None, None], np.float64(array[index]), 0)
            for array in (self.query, self.key, self.value)
        ]
        return [*arrays, mask]


@functools.partial(jax.jit, static_argnums=0)
def record_qkv(
    graphdef: Any, weights: Any, tokens: Any, mask: Any
) -> list[AttentionInputs]:
    """Runs an encoder without dropout, and returns the inputs of its attentions.

    While JAX traces this function, the attention of each block is replaced by one that
    also appends what it is given to a list. The encoder is merged here, so that the
    caller's stays as it is.

    Args:
      graphdef, weights: the encoder, as `nnx.split` gives it.
      tokens: int [B, L].
      mask: bool [B, L], False in the padding.

    Raises:
      ConfigError: if the attention of a layer has no queries and keys.
    """
    layers: list[AttentionInputs] = []
    encoder = nnx.merge(graphdef, weights)
    encoder.remat = "none"  # otherwise blocks would be traced apart from the list
    for number, block in enumerate(encoder.blocks):
        if block.attention.num_projections == 1:
            raise ConfigError(
                f"the attention of layer {number} has no queries and keys to measure: "
                "take a run of another one, such as softmax"
            )
        block.attention.attention = _make_recorder(block.attention.attention, layers)
    encoder(tokens, mask)
    return layers


def _make_recorder(
    attention: Callable[..., jax.Array], layers: list[AttentionInputs]
) -> Callable[..., jax.Array]:
    """The attention, which also appends its inputs to the layers."""

    def attend(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        *,
        mask: jax.Array,
        **more: Any,
    ) -> jax.Array:
        inputs = AttentionInputs(
            query=jnp.float32(query),
            key=jnp.float32(key),
            value=jnp.float32(value),
            mask=mask[:, 0, 0],
        )
        layers.append(inputs)
        return attention(query, key, value, mask=mask, **more)

    return attend
