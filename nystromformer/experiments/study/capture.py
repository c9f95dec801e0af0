"""The former place of `errors.record_qkv`, until `trained_run` takes it from there."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from nystromformer.experiments.study.errors import Layer, record_qkv


def capture(model: Any, data: Any, examples: np.ndarray) -> list[Layer]:
    """The inputs of each layer's attention."""
    batch = data.take(jnp.asarray(examples), jnp.ones(len(examples)))
    return record_qkv(model.encoder, batch.inputs, batch.mask)
