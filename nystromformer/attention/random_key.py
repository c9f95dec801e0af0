"""The random key of an attention that draws something, such as blocks or hashes."""

import jax
import jax.numpy as jnp
from flax import nnx


class RandomKey(nnx.Variable):
    """A key as uint32 [2]: in every checkpoint, without a gradient."""


def make_random_key(key: jax.Array) -> RandomKey:
    """Draws the key of one attention from a key of jax."""
    return RandomKey(jax.random.bits(key, (2,), jnp.uint32))


def read_random_key(random_key: RandomKey) -> jax.Array:
    """The key as jax takes it.

    The generator is named, so that a change of jax's default changes no model.
    """
    return jax.random.wrap_key_data(random_key[...], impl="threefry2x32")
