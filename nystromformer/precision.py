"""The dtypes and the precision in which products and sums are computed."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def at_least_float32(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulators: float32, or float64 for float64."""
    with jax.numpy_dtype_promotion("standard"):  # The caller's may be strict.
        return jnp.promote_types(dtype, jnp.float32)


def cast_floats(array: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The array in a dtype; integers, as those of a random key, stay as they are."""
    array = jnp.asarray(array)
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array


def tensor_core_precision(dtype: jax.typing.DTypeLike) -> lax.PrecisionLike:
    """The precision that gives float32's accuracy on an NVIDIA GPU's tensor cores.

    A number is the sum of three bfloat16 parts, and six products of parts are added.
    What they leave out is below float32's own rounding. GPUs before Ampere, and dtypes
    other than float32, get "highest", which uses the plain units.
    """
    if dtype == jnp.float32 and not is_before_ampere():
        return lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    return "highest"


def is_before_ampere() -> bool:
    """Whether this machine's device is an NVIDIA GPU that knows no bfloat16."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    return capability.startswith(("5", "6", "7"))


def einsum(letters: str, x: Any, y: Any, precision: Any = None) -> jax.Array:
    """jnp.einsum that accumulates in at least float32, and returns that dtype."""
    return jnp.einsum(
        letters,
        x,
        y,
        precision=precision,
        preferred_element_type=at_least_float32(x.dtype),  # type: ignore[arg-type]
    )
