"""The queries, keys and values of a model's layers, as its attentions get them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from nystromformer.config import ConfigError


class Layer(NamedTuple):
    """Query, key and value float64 [B, L, N, H] of one layer, and mask bool [B, L]."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray

    def example(self, index: int) -> list[np.ndarray]:
        """Query, key, value [L, N, H] and mask [L] of one example; padding is zero."""
        *arrays, mask = (x[index] for x in self)
        return [*(np.where(mask[:, None, None], x, 0) for x in arrays), mask]


def record_qkv(
    encoder: Any, inputs: jax.typing.ArrayLike, mask: Any = None
) -> list[Layer]:
    """The inputs of each layer's attention for tokens [B, L], without dropout.

    Raises:
      ConfigError: the attention has no queries and keys.
    """
    layers: list[Layer] = []

    def recording(attention: Any) -> Callable[..., jax.Array]:
        def attend(*qkv: Any, mask: Any = None, **flax: Any) -> jax.Array:
            valid = np.ones(qkv[0].shape[:2], bool) if mask is None else mask[:, 0, 0]
            arrays = (np.asarray(x, np.float64) for x in qkv)
            layers.append(Layer(*arrays, mask=np.asarray(valid)))
            return attention(*qkv, mask=mask, **flax)

        return attend

    encoder = nnx.clone(encoder)
    encoder.remat = "none"
    for block in encoder.blocks:
        if block.attention.num_projections == 1:
            raise ConfigError("attention 'identity' has no queries and keys")
        block.attention.attention = recording(block.attention.attention)
    encoder(inputs, mask)
    return layers
