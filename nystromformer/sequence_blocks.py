"""A sequence cut into blocks, with or without margins, and ranks counted in blocks.

A sequence that is sharded over devices stays where it is: neighbouring shards exchange
margins, or totals of blocks, and no more.

Letters: L sequence length, C blocks.
"""

import jax
import jax.numpy as jnp

# A cumulative sum over a sharded axis gathers it. So ranks are counted within blocks,
# and only the totals of these many blocks are summed across the sequence.
_NUM_RANK_BLOCKS = 1024


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


def ranks(mask: jax.Array) -> jax.Array:
    """The number of True in mask [L] up to and including each token, int32 [L]."""
    length = mask.shape[0]
    blocks = to_blocks(mask, -(-length // _NUM_RANK_BLOCKS))
    within = jnp.cumsum(blocks, axis=1, dtype=jnp.int32)  # [C, size]
    totals = within[:, -1]
    before = jnp.cumsum(totals) - totals  # [C]
    return (within + before[:, None]).reshape(-1)[:length]


def first_valid_positions(mask: jax.Array, count: int) -> jax.Array:
    """The positions of the first `count` valid tokens of mask [L], int32 [count].

    Where there are fewer, the remaining positions are those of the last token.
    """
    numbers = jnp.arange(1, count + 1)
    positions = jnp.searchsorted(ranks(mask), numbers, method="compare_all")
    return jnp.minimum(positions, mask.shape[0] - 1)
