"""BigBird: a window of three blocks, global ends and random blocks.

Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020, internal
transformer construction (ITC). Block i of the queries attends to the blocks i − 1, i,
i + 1, to the first and the last, and to num_random_blocks others; the first and the
last block attend to everything. O(L · block_size) memory.

Differs from the published code: the last block is the last one with a valid token and
random blocks are drawn among those up to it, so adding padding changes nothing; the
draw of block i is a pure function of (seed, i), shared by heads and layers; blocks that
coincide (window and ends, in a short sequence) count once.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention.base import Attention, check_seed, check_size
from nystromformer.attention.block_attention import (
    attend_blocks,
    forbid,
    self_attention,
)
from nystromformer.blocks import to_blocks
from nystromformer.nystrom import attend
from nystromformer.precision import at_least_float32


def attended_blocks(
    valid: jax.Array, num_random_blocks: int, seed: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Which blocks of keys each block of queries attends to.

    Args:
      valid: [C] bool, the blocks with any token that counts.
      num_random_blocks: r.
      seed: of the random blocks.

    Returns:
      blocks [C, 5 + r] int32: window, ends, random; exists [C, 5 + r] bool, False where
      there is no such block or it stands further left already; ends [2] int32, the
      first and the last valid block.
    """
    num_blocks = valid.shape[0]
    own = jnp.arange(num_blocks)
    first, last = jnp.argmax(valid), num_blocks - 1 - jnp.argmax(valid[::-1])
    ends = jnp.stack([first, last])
    blocks = jnp.stack(
        [own - 1, own, own + 1, jnp.full_like(own, first), jnp.full_like(own, last)], 1
    )  # [C, 5]
    twice = [(blocks[:, :k] == blocks[:, k : k + 1]).any(1) for k in range(5)]
    exists = (first <= blocks) & (blocks <= last) & ~jnp.stack(twice, 1)

    def draw(block: jax.Array) -> jax.Array:
        # Named, so that a change of jax's default generator changes no model.
        key = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), block)
        return jax.random.uniform(key, (num_random_blocks,), jnp.float32)

    for uniform in jax.vmap(draw)(own).T:
        num_free = last - first + 1 - exists.sum(1)
        rank = jnp.minimum((uniform * num_free).astype(own.dtype), num_free - 1)
        block = first + rank  # and on over the blocks that are taken, in their order
        for taken in jnp.sort(jnp.where(exists, blocks, num_blocks), axis=1).T:
            block += block >= taken
        blocks = jnp.concatenate([blocks, block[:, None]], axis=1)
        exists = jnp.concatenate([exists, (num_free > 0)[:, None]], axis=1)
    return jnp.clip(blocks, 0, num_blocks - 1), exists, ends


def bigbird(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    *,
    block_size: int,
    num_random_blocks: int,
    seed: int,
    precision: jax.lax.PrecisionLike = None,
) -> jax.Array:
    """BigBird attention of one head of one sequence.

    Args:
      query: [L, H].
      key: [L, H].
      value: [L, H].
      mask: [L] bool, True = attend.
      block_size: b, tokens in a block.
      num_random_blocks: r.
      seed: of the random blocks.
      precision: of the products.

    Returns:
      [L, H] in at least float32.
    """
    length, head_dim = query.shape
    key = key * head_dim**-0.5
    in_blocks = partial(to_blocks, size=block_size)
    valid = in_blocks(mask)  # [C, b]
    blocks, exists, ends = attended_blocks(valid.any(1), num_random_blocks, seed)

    def gathered(x: jax.Array) -> jax.Array:  # [L, H] -> [C, (5 + r) b, H]
        return in_blocks(x)[blocks].reshape(len(blocks), -1, x.shape[-1])

    allowed = (valid[blocks] & exists[:, :, None]).reshape(len(blocks), 1, -1)
    bias = forbid(allowed, at_least_float32(query.dtype))
    queries = in_blocks(query)  # [C, b, H]
    out, _ = attend_blocks(queries, gathered(key), gathered(value), bias, precision)
    rows = queries[ends].reshape(-1, head_dim)
    rows = attend(rows, key, value, mask, precision=precision)
    out = out.at[ends].set(rows.reshape(2, block_size, -1))
    return out.reshape(-1, out.shape[-1])[:length]


def check_options(*, block_size: int, num_random_blocks: int) -> None:
    """Raises ValueError for options of BigBird that make no sense."""
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    if num_random_blocks < 0:
        raise ValueError(
            f"num_random_blocks must be 0 or more, got {num_random_blocks}"
        )


def bigbird_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    block_size: int = 64,
    num_random_blocks: int = 3,
    seed: int = 0,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    broadcast_dropout: bool = True,
    deterministic: bool = True,
    dtype: jax.typing.DTypeLike | None = None,
    precision: jax.lax.PrecisionLike = None,
    module: object = None,
    is_causal: bool = False,
) -> jax.Array:
    """BigBird, `bigbird` lifted over heads and batch.

    Args:
      query: [B, L, N, H].
      key: [B, L, N, H].
      value: [B, L, N, H].
      bias: must be None.
      mask: None, or bool that broadcasts to [B, 1, 1, L], True = attend.
      block_size: tokens in a block, at least 1; the window is three blocks.
      num_random_blocks: blocks that a block attends to beside window and ends; fewer
        where there are not as many.
      seed: of the random blocks.
      dropout_rng, dropout_rate, broadcast_dropout, deterministic: dropout of weights is
        not defined here, so the rate must be 0 unless deterministic.
      dtype: of the computation and the output; None = the inputs'.
      precision: of the products.
      module, is_causal: must be None and False.

    Returns:
      [B, L, N, H] in dtype.

    Raises:
      ValueError: for what cannot be honoured (T ≠ S too), and for senseless options.
    """
    check_options(block_size=block_size, num_random_blocks=num_random_blocks)
    return self_attention(
        "bigbird",
        partial(
            bigbird,
            block_size=block_size,
            num_random_blocks=num_random_blocks,
            seed=seed,
            precision=precision,
        ),
        query,
        key,
        value,
        bias,
        mask,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        module=module,
        is_causal=is_causal,
    )


class BigBirdAttention(Attention):
    """`bigbird_attention`; options as there. Without parameters."""

    size_option = "block_size"
    defaults = {
        "block_size": 64,  # of a window of three blocks, and of the two ends
        "num_random_blocks": 3,
        "seed": 0,  # of the random blocks
    }

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        max_length: int,
        rngs: nnx.Rngs,
        block_size: int = 64,
        num_random_blocks: int = 3,
        seed: int = 0,
    ):
        check_options(block_size=block_size, num_random_blocks=num_random_blocks)
        check_size("block_size", block_size, max_length, max_length)
        num_blocks = -(-max_length // block_size)
        check_size("num_random_blocks", num_random_blocks, num_blocks, max_length)
        check_seed("seed", seed)
        self.block_size = block_size
        self.num_random_blocks = num_random_blocks
        self.seed = seed

    def attend(self, *inputs: Any, **flax: Any) -> jax.Array:
        return bigbird_attention(
            *inputs,
            block_size=self.block_size,
            num_random_blocks=self.num_random_blocks,
            seed=self.seed,
            **flax,
        )
