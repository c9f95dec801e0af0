"""BigBird: a window of three blocks, global ends and random blocks.

Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020, internal
transformer construction (ITC). Block i of the queries attends to the blocks i − 1, i,
i + 1, to the first and the last, and to num_random_blocks others; the first and the
last block attend to everything. O(L · block_size) memory.

As in the published code, each head of each layer has random blocks of its own, and
keeps them. Differs from it: the first and the last block are those with valid tokens
and random blocks are drawn between them, so adding padding changes nothing; blocks that
coincide (window and ends, in a short sequence) are seen once.

Letters: L length, N heads, H head dim, C blocks, b tokens of a block, r random blocks.
"""

from functools import partial
from typing import Unpack

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention, make_random_key, read_random_key
from nystromformer.attention.options import CommonArguments
from nystromformer.blocks import to_blocks
from nystromformer.dot_product import attend
from nystromformer.validation import check_range


def draw_uniform(key: jax.Array, shape: tuple[int, int, int]) -> jax.Array:
    """Draws the numbers that choose random blocks.

    Args:
      key: the key of the draw.
      shape: N, C, r.

    Returns:
      Uniform numbers [N, C, r]. Those of block i are the same for every C, and so for
      every length.
    """
    num_heads, num_blocks, num_random_blocks = shape

    def draw(head: jax.Array, block: jax.Array) -> jax.Array:
        block_key = jax.random.fold_in(jax.random.fold_in(key, head), block)
        return jax.random.uniform(block_key, (num_random_blocks,), jnp.float32)

    draw_blocks = jax.vmap(draw, in_axes=(None, 0))
    draw_heads = jax.vmap(draw_blocks, in_axes=(0, None))
    return draw_heads(jnp.arange(num_heads), jnp.arange(num_blocks))


def choose_blocks(
    valid: jax.Array, uniform: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The blocks of keys that each block of queries attends to.

    With nine valid blocks, 0 to 8, and one random block:

                      window    ends   random
        blocks[5] = [ 4, 5, 6,  0, 8,  2 ]
        blocks[1] = [ 0, 1, 2,  0, 8,  4 ]

    In row 1 `exists` is False at the second 0, which the window has already. The random
    block is one that the row has not yet: 1, 2, 3 or 7 in row 5, and 3 to 7 in row 1.

    Args:
      valid: [C] bool, the blocks with at least one valid token.
      uniform: [C, r], numbers in [0, 1) that choose the random blocks.

    Returns:
      blocks [C, 5 + r] int32: window, ends, random ones.
      exists [C, 5 + r] bool: False outside the valid blocks, and for a block that the
        row already has further left.
      ends [2] int32: the first and the last valid block.
    """
    num_blocks = valid.shape[0]
    first = jnp.argmax(valid)
    last = num_blocks - 1 - jnp.argmax(valid[::-1])
    blocks, exists = _window_and_ends(num_blocks, first, last)

    for column in range(uniform.shape[1]):
        # Choose a number among the free blocks, those that the row has not yet.
        num_free = last - first + 1 - exists.sum(1)
        position = uniform[:, column] * num_free.astype(uniform.dtype)
        free_index = jnp.minimum(position.astype(blocks.dtype), num_free - 1)

        # Count from the first block on, and skip each block that the row has: sorted,
        # they are met in their order.
        block = first + free_index
        present_blocks = jnp.sort(jnp.where(exists, blocks, num_blocks), axis=1)
        for present in present_blocks.T:
            block += (block >= present).astype(block.dtype)

        blocks = jnp.concatenate([blocks, block[:, None]], axis=1)
        exists = jnp.concatenate([exists, (num_free > 0)[:, None]], axis=1)
    ends = jnp.stack([first, last])
    return jnp.clip(blocks, 0, num_blocks - 1), exists, ends


def _window_and_ends(
    num_blocks: int, first: jax.Array, last: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The blocks [C, 5] that are not random, and which of them exist, [C, 5] bool."""
    block_ids = jnp.arange(num_blocks)
    blocks = jnp.stack(
        [
            block_ids - 1,
            block_ids,
            block_ids + 1,
            jnp.full_like(block_ids, first),
            jnp.full_like(block_ids, last),
        ],
        axis=1,
    )
    repeated = [
        (blocks[:, :column] == blocks[:, column : column + 1]).any(1)
        for column in range(5)
    ]
    is_inside = (first <= blocks) & (blocks <= last)
    return blocks, is_inside & ~jnp.stack(repeated, axis=1)


class BigBirdAttention(Attention):
    """Window, ends and random blocks. Without parameters."""

    self_attention_only = True
    size_option = "block_size"

    def __init__(
        self,
        *,
        block_size: int = 64,
        num_random_blocks: int = 3,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention and draws the key of its random blocks.

        Args:
          block_size: the tokens of a block; the window is three blocks.
          num_random_blocks: further blocks that each block attends to, if there are so
            many.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: an invalid value.
        """
        super().__init__(**common)
        cause = f"max_length={self.max_length}"
        check_range("block_size", block_size, 1, self.max_length, cause)
        check_range("num_random_blocks", num_random_blocks, 0)
        num_blocks = -(-self.max_length // block_size)
        if num_random_blocks > num_blocks:
            raise ValueError(
                f"num_random_blocks must be at most {num_blocks}, the number of blocks "
                f"of {block_size=} in {cause}, got {num_random_blocks}: give a smaller "
                "block_size"
            )
        self.block_size = block_size
        self.num_random_blocks = num_random_blocks
        self.random_key = make_random_key(common["rngs"].params())

    def per_head(self, length: int) -> tuple[jax.Array, ...]:
        num_blocks = -(-length // self.block_size)
        shape = (self.num_heads, num_blocks, self.num_random_blocks)
        return (draw_uniform(read_random_key(self.random_key), shape),)

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
        uniform: jax.Array,
    ) -> jax.Array:
        length, head_dim = query.shape
        if mask is None:
            mask = jnp.ones(length, bool)
        key = key * head_dim**-0.5
        query_blocks = to_blocks(query, self.block_size)  # [C, b, H]
        key_blocks = to_blocks(key, self.block_size)
        value_blocks = to_blocks(value, self.block_size)
        valid = to_blocks(mask, self.block_size)  # [C, b]
        blocks, exists, ends = choose_blocks(valid.any(1), uniform)

        num_blocks = len(query_blocks)
        keys = key_blocks[blocks].reshape(num_blocks, -1, head_dim)  # [C, (5 + r) b, H]
        values = value_blocks[blocks].reshape(num_blocks, -1, value.shape[-1])
        is_seen = (valid[blocks] & exists[:, :, None]).reshape(num_blocks, -1)
        attend_blocks = jax.vmap(partial(attend, precision=precision))
        out = attend_blocks(query_blocks, keys, values, is_seen)  # [C, b, H]

        # The first and the last block attend to everything.
        end_queries = query_blocks[ends].reshape(-1, head_dim)
        end_rows = attend(end_queries, key, value, mask, precision=precision)
        out = out.at[ends].set(end_rows.reshape(2, self.block_size, -1))
        return out.reshape(-1, out.shape[-1])[:length]
