"""A sequence cut into blocks, and into blocks with margins.

Cut so, a sequence that is sharded over devices stays where it is: what neighbouring
shards exchange is the margins.

Letters: L sequence length, C blocks.
"""

import jax
import jax.numpy as jnp

_RANK_BLOCKS = 1024


def to_blocks(x: jax.Array, size: int) -> jax.Array:
    """[L, ...] cut into [⌈L / size⌉, size, ...]; zeros (False) fill the last block."""
    num_blocks = -(-x.shape[0] // size)
    fill = [(0, num_blocks * size - x.shape[0])] + [(0, 0)] * (x.ndim - 1)
    return jnp.pad(x, fill).reshape(num_blocks, size, *x.shape[1:])


def neighbourhoods(x: jax.Array, size: int, margin: int) -> jax.Array:
    """Blocks with margins: x [L, ...] -> [⌈L / size⌉, size + 2 margin, ...].

    Block c holds x[c · size − margin : (c + 1) · size + margin] or 0; margin ≤ size.
    """
    blocks = to_blocks(x, size)
    others = ((0, 0),) * x.ndim
    before = jnp.pad(blocks[:-1, size - margin :], ((1, 0), *others))
    after = jnp.pad(blocks[1:, :margin], ((0, 1), *others))
    return jnp.concatenate([before, blocks, after], axis=1)


def ranks(mask: jax.Array) -> jax.Array:
    """The number of True in mask [L] up to and including each token, int32 [L].

    Counted in blocks, whose totals are few numbers whatever the length.
    """
    blocks = to_blocks(mask, -(-mask.shape[0] // _RANK_BLOCKS))
    within = jnp.cumsum(blocks, axis=1, dtype=jnp.int32)  # [C, size]
    total = within[:, -1]
    before = jnp.cumsum(total) - total  # [C]
    return (within + before[:, None]).reshape(-1)[: mask.shape[0]]


def nth_valid(mask: jax.Array, count: int) -> jax.Array:
    """The positions [count] of the first valid tokens of mask [S]."""
    rank, wanted = ranks(mask), jnp.arange(1, count + 1)
    found = jnp.searchsorted(rank, wanted, method="compare_all")
    return jnp.minimum(found, mask.shape[0] - 1)
