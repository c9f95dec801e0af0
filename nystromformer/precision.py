"""How precise statistics and accumulators are, whatever the dtype outside."""

import jax
import jax.numpy as jnp


def at_least_float32(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulators: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)
