"""Blocks of a sequence [L, ...]: L tokens as C blocks of the same size."""

import jax
import jax.numpy as jnp


def to_blocks(x: jax.Array, size: int) -> jax.Array:
    """Cuts x [L, ...] into [⌈L / size⌉, size, ...] and fills the last with zeros."""
    length = x.shape[0]
    num_blocks = -(-length // size)
    pad_widths = [(0, num_blocks * size - length)] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, pad_widths).reshape(num_blocks, size, *x.shape[1:])


def to_blocks_with_margins(x: jax.Array, size: int, margin: int) -> jax.Array:
    """Cuts x [L, ...] into blocks with margins, [⌈L / size⌉, size + 2 margin, ...].

    Block c holds x[c · size − margin : (c + 1) · size + margin], with zeros beyond both
    ends of the sequence; margin ≤ size.
    """
    blocks = to_blocks(x, size)
    no_padding = [(0, 0)] * x.ndim
    before = jnp.pad(blocks[:-1, size - margin :], [(1, 0), *no_padding])
    after = jnp.pad(blocks[1:, :margin], [(0, 1), *no_padding])
    return jnp.concatenate([before, blocks, after], axis=1)
