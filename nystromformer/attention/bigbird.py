"""BigBird: a window of three blocks, global ends and random blocks.

Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020, internal
transformer construction (ITC). Block i of the queries attends to the blocks i − 1, i,
i + 1, to the first and the last, and to num_random_blocks others; the first and the
last block attend to everything. O(L · block_size) memory.

Differs from the published code: the last block is the last one with a valid token and
random blocks are drawn among those up to it, so adding padding changes nothing; the
draw of block i is a pure function of (seed, i), shared by heads and layers; blocks that
coincide (window and ends, in a short sequence) are seen once.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.attention.base import Attention
from nystromformer.blocks import to_blocks
from nystromformer.dot_product import attend
from nystromformer.validation import check_range


def attended_blocks(
    valid: jax.Array, num_random_blocks: int, seed: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The blocks of keys that each block of queries attends to.

    valid [C] bool: the blocks with at least one valid token. Returns blocks [C, 5 + r]
    int32: window, ends, r random ones; exists [C, 5 + r] bool, False for no block and
    for one that stands further left already; ends [2] int32, first and last valid.
    """
    num_blocks = valid.shape[0]
    own = jnp.arange(num_blocks)
    first, last = jnp.argmax(valid), num_blocks - 1 - jnp.argmax(valid[::-1])
    ends = jnp.stack([first, last])
    blocks = jnp.stack(
        [own - 1, own, own + 1, jnp.full_like(own, first), jnp.full_like(own, last)], 1
    )  # [C, 5]
    repeated = [(blocks[:, :k] == blocks[:, k : k + 1]).any(1) for k in range(5)]
    exists = (first <= blocks) & (blocks <= last) & ~jnp.stack(repeated, 1)

    def draw(block: jax.Array) -> jax.Array:
        # Named, so that a change of jax's default generator changes no model.
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), block)
        return jax.random.uniform(key, (num_random_blocks,), jnp.float32)

    for uniform in jax.vmap(draw)(own).T:
        num_free = last - first + 1 - exists.sum(1)
        drawn = uniform * num_free.astype(uniform.dtype)
        rank = jnp.minimum(drawn.astype(own.dtype), num_free - 1)
        block = first + rank  # and on over the blocks that are taken, in their order
        for taken in jnp.sort(jnp.where(exists, blocks, num_blocks), axis=1).T:
            block += (block >= taken).astype(block.dtype)
        blocks = jnp.concatenate([blocks, block[:, None]], axis=1)
        exists = jnp.concatenate([exists, (num_free > 0)[:, None]], axis=1)
    return jnp.clip(blocks, 0, num_blocks - 1), exists, ends


class BigBirdAttention(Attention):
    """Window, ends and random blocks. Without parameters."""

    block_size: int = 64  # tokens; the window is three blocks
    num_random_blocks: int = 3  # further blocks that each attends to, where there are
    seed: int = 0  # of the random blocks

    self_attention_only = True
    size_option = "block_size"

    def __init__(self, **options: Any):
        super().__init__(**options)
        check_range("block_size", self.block_size, 1, self.max_length)
        num_blocks = -(-self.max_length // self.block_size)
        check_range("num_random_blocks", self.num_random_blocks, 0, num_blocks)

    def attend(self, query, key, value, mask, precision):
        mask = jnp.ones(len(key), bool) if mask is None else mask
        length, head_dim = query.shape
        key = key * head_dim**-0.5
        in_blocks = partial(to_blocks, size=self.block_size)
        valid = in_blocks(mask)  # [C, b]
        blocks, exists, ends = attended_blocks(
            valid.any(1), self.num_random_blocks, self.seed
        )

        def gathered(x: jax.Array) -> jax.Array:  # [L, H] -> [C, (5 + r) b, H]
            return in_blocks(x)[blocks].reshape(len(blocks), -1, x.shape[-1])

        allowed = (valid[blocks] & exists[:, :, None]).reshape(len(blocks), -1)
        queries = in_blocks(query)  # [C, b, H]
        of_blocks = jax.vmap(partial(attend, precision=precision))
        out = of_blocks(queries, gathered(key), gathered(value), allowed)
        rows = queries[ends].reshape(-1, head_dim)
        rows = attend(rows, key, value, mask, precision=precision)
        out = out.at[ends].set(rows.reshape(2, self.block_size, -1))
        return out.reshape(-1, out.shape[-1])[:length]
