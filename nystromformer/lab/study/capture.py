"""Queries, keys and values as the layers of a model hand them to their attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer.config import ConfigError
from nystromformer.heads import SequenceClassifier
from nystromformer.training.data import Data


@dataclasses.dataclass(frozen=True)
class Layer:
    """Query, key and value [B, L, N, H] of one layer, and mask [B, L] bool."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray


class Recorder:
    """In the place of an attention: does what it does, and keeps what it was given."""

    def __init__(self, attention: Any):
        self.attention = attention
        self.layers: list[Layer] = []

    def __call__(
        self, query: Any, key: Any, value: Any, mask: Any = None, **flax: Any
    ) -> jax.Array:
        """Arguments as of an attention; mask [B, 1, 1, L]."""
        if mask is None:
            mask = jnp.ones((query.shape[0], 1, 1, query.shape[1]), bool)
        q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
        self.layers.append(Layer(q, k, v, np.asarray(mask[:, 0, 0])))
        return self.attention(query, key, value, mask=mask, **flax)


def capture(model: SequenceClassifier, data: Data, examples: np.ndarray) -> list[Layer]:
    """What the attention of each layer gets, without dropout.

    Args:
      model: its attentions are replaced by recorders: use it no more.
      data: of its task.
      examples: indices [B].

    Raises:
      ConfigError: an attention that has no queries and keys.
    """
    encoder: Any = model.encoder
    if any(block.attention.num_projections == 1 for block in encoder.blocks):
        raise ConfigError("attention 'none' has no queries and keys to look at")
    if encoder.shared is None:
        recorders = [Recorder(block.attention.attention) for block in encoder.blocks]
        for block, recorder in zip(encoder.blocks, recorders, strict=True):
            block.attention.attention = recorder
    else:
        recorders = [Recorder(encoder.shared)]
        encoder.shared = recorders[0]
    batch = data.take(jnp.asarray(examples), jnp.ones(len(examples)))
    model(batch.inputs, batch.mask)
    return [layer for recorder in recorders for layer in recorder.layers]
