"""Captures the queries, keys and values of the layers of a model."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.training.data import Data


@dataclasses.dataclass(frozen=True)
class Layer:
    """Query, key and value [B, L, N, H] of one layer, and mask [B, L] bool."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    mask: np.ndarray


class Recorder:
    """Replaces an attention: computes the same and keeps its inputs."""

    def __init__(self, attention: Any):
        self.attention, self.layer = attention, None

    def __call__(
        self, query: Any, key: Any, value: Any, mask: Any = None, **flax: Any
    ) -> jax.Array:
        """Arguments as of an attention; mask [B, 1, 1, L]."""
        valid = np.ones(query.shape[:2], bool) if mask is None else mask[:, 0, 0]
        arrays = (np.asarray(x, np.float64) for x in (query, key, value))
        self.layer = Layer(*arrays, mask=np.asarray(valid))
        return self.attention(query, key, value, mask=mask, **flax)


def capture(model: Any, data: Data, examples: np.ndarray) -> list[Layer]:
    """The inputs of each layer's attention, without dropout.

    Args:
      model: an encoder with a head. It stays as it is.
      data: of its task.
      examples: indices [B].

    Raises:
      ConfigError: an attention that has no queries and keys.
    """
    model = nnx.clone(model)
    model.encoder.remat = "none"
    for block in model.encoder.blocks:
        if block.attention.num_projections == 1:
            raise ConfigError("attention 'identity' has no queries and keys")
        block.remat = "none"
        block.attention.attention = Recorder(block.attention.attention)
    batch = data.take(jnp.asarray(examples), jnp.ones(len(examples)))
    model(batch.inputs, batch.mask)
    return [block.attention.attention.layer for block in model.encoder.blocks]
