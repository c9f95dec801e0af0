"""Exact attention, some sequences, heads and queries at a time.

A head of 8,192 tokens has 67 million scores. So that not all of them need to exist at
once, the work is cut into groups:

    attend_in_groups             some sequences at a time
      └─ _attend_sequence        of one sequence some heads at a time
           └─ _attend_head       of one head a block of queries at a time
                └─ _attend_block      softmax(Q Kᵀ / √H + bias) V

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nystromformer.dot_product import attend
from nystromformer.dropout import dropout
from nystromformer.ops import at_least_float32

# The most scores that exist at a time on an accelerator: they limit a block of queries.
MAX_SCORES = 2**27
# The number of scores that stay in the cache of a CPU.
CPU_SCORES = 2**19
# The most queries of a block on a CPU. Up to twice as many stay together, if their
# scores fit into the cache.
CPU_BLOCK = 128


class GroupSizes(NamedTuple):
    """How many sequences, heads and queries are attended at a time; None = all."""

    sequences: int | None
    heads: int | None
    queries: int


def choose_group_sizes(query_shape: tuple[Any, ...], num_keys: int) -> GroupSizes:
    """Chooses as many as fit into memory, or on a CPU into its cache.

    On an accelerator all heads of all sequences are attended at once, and only queries
    go in blocks. On a CPU heads and sequences take turns as well. The default backend
    decides, not where the arrays are.

    Args:
      query_shape: B, T, N, H. B may be symbolic, in a program for every batch size.
      num_keys: S.

    Returns:
      The sizes of the groups, each at least 1.
    """
    batch, length, num_heads, _ = query_shape
    batch_is_symbolic = jax.export.is_symbolic_dim(batch)
    if jax.default_backend() != "cpu":
        num_matrices = num_heads if batch_is_symbolic else batch * num_heads
        num_queries = MAX_SCORES // max(1, num_matrices * num_keys)
        return GroupSizes(sequences=None, heads=None, queries=max(1, num_queries))

    num_queries = max(1, length)
    if length > 2 * CPU_BLOCK or length * num_keys > CPU_SCORES:
        num_queries = max(1, min(CPU_BLOCK, CPU_SCORES // num_keys))
    heads_in_cache = CPU_SCORES // (num_queries * num_keys)
    sequences_in_cache = max(1, heads_in_cache // num_heads)
    # A batch may be sharded over several devices, and a loop over it would gather it.
    takes_whole_batch = batch_is_symbolic or jax.device_count() > 1
    return GroupSizes(
        sequences=None if takes_whole_batch else sequences_in_cache,
        heads=max(1, heads_in_cache),
        queries=num_queries,
    )


def map_rows(
    function: Callable[..., jax.Array],
    *arrays: jax.Array | None,
    num_rows: Any,
    group_size: int | None,
) -> jax.Array:
    """Stacks function(row 0 of each array), function(row 1 of each array), ….

    Args:
      function: a function of a row of each array.
      *arrays: arrays of num_rows rows. One of a single row serves every call, and so
        does None.
      num_rows: the number of calls; it may be symbolic if group_size is None.
      group_size: how many calls are made at a time, by `jax.vmap`; None = all.

    Returns:
      The results along a new first axis.
    """

    def take_single_row(array: jax.Array | None) -> jax.Array | None:
        if array is not None and array.shape[0] == 1:
            return array[0]
        return None

    single_rows = [take_single_row(array) for array in arrays]
    # `vmap` and `lax.map` go over the rows of all others, and leave None as it is.
    mapped_arrays = [
        array if single_row is None else None
        for array, single_row in zip(arrays, single_rows, strict=True)
    ]

    def call(rows: list[jax.Array | None]) -> jax.Array:
        """Calls the function on a row of each mapped array, and the single rows."""
        inputs = [
            row if single_row is None else single_row
            for row, single_row in zip(rows, single_rows, strict=True)
        ]
        return function(*inputs)

    if num_rows == 1:
        # No array is mapped: each has a single row.
        return call(mapped_arrays)[None]
    if group_size is None or group_size >= num_rows:
        return jax.vmap(call)(mapped_arrays)
    batch_size = group_size if group_size > 1 else None
    return jax.lax.map(call, mapped_arrays, batch_size=batch_size)


def attend_in_groups(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rngs: jax.Array | None,
    *,
    group_sizes: GroupSizes,
    dropout_rate: float,
    is_causal: bool,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """softmax(Q Kᵀ / √H + bias) V with a bounded number of scores at a time.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, E].
      bias: [B, N, T, S], each axis of which may be 1, or None.
      mask: the same of bool, True = attend, or None.
      rngs: [B, N] keys for the dropout of weights, each axis of which may be 1; None
        for no dropout.
      group_sizes: as `choose_group_sizes` returns them.
      dropout_rate: the probability that a weight is dropped, if there are rngs.
      is_causal: whether query t attends to no key after t.
      precision: the precision of the products.

    Returns:
      [B, T, N, E] in the dtype of the query.
    """
    attend_head = functools.partial(
        _attend_head,
        block_size=group_sizes.queries,
        dropout_rate=dropout_rate,
        is_causal=is_causal,
        precision=precision,
    )
    attend_sequence = functools.partial(
        _attend_sequence, attend_head=attend_head, group_size=group_sizes.heads
    )
    out = map_rows(
        attend_sequence,
        query,
        key,
        value,
        bias,
        mask,
        rngs,
        num_rows=query.shape[0],
        group_size=group_sizes.sequences,
    )
    return out.astype(query.dtype)


def _attend_sequence(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rngs: jax.Array | None,
    *,
    attend_head: Callable[..., jax.Array],
    group_size: int | None,
) -> jax.Array:
    """Attends with the heads of one sequence, `group_size` at a time.

    query [T, N, H], key [S, N, H], value [S, N, E], bias and mask [N, T, S], each axis
    of which may be 1, and rngs [N] or [1] -> [T, N, E].
    """
    out = map_rows(
        attend_head,
        query.swapaxes(0, 1),
        key.swapaxes(0, 1),
        value.swapaxes(0, 1),
        bias,
        mask,
        rngs,
        num_rows=query.shape[1],
        group_size=group_size,
    )
    return out.swapaxes(0, 1)


def _attend_head(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rng: jax.Array | None,
    *,
    block_size: int,
    dropout_rate: float,
    is_causal: bool,
    precision: jax.lax.PrecisionLike,
) -> jax.Array:
    """Attends with one head of one sequence, `block_size` queries at a time.

    With several blocks the backward pass computes the scores again. query [T, H], key
    [S, H], value [S, E], bias and mask [T, S], each axis of which may be 1 -> [T, E].
    """
    length = len(query)
    num_blocks = max(1, -(-length // block_size))
    attend_block = functools.partial(
        _attend_block,
        dropout_rate=dropout_rate,
        is_causal=is_causal,
        precision=precision,
        are_keys_shared=num_blocks > 1,
    )
    if num_blocks == 1:
        return attend_block(query, key, value, bias, mask, rng, 0)

    def cut_into_blocks(array: jax.Array | None) -> jax.Array | None:
        """[T, …] in blocks; a single row serves all of them."""
        if array is None:
            return None
        if len(array) == 1:
            return array[None]
        fill = num_blocks * block_size - length
        padded = jnp.pad(array, ((0, fill), (0, 0)))
        return padded.reshape(num_blocks, block_size, array.shape[1])

    # Keys and values are float32 at least: their gradient is a sum over blocks, which
    # JAX accumulates in their dtype.
    accumulation_dtype = at_least_float32(key.dtype)
    out = map_rows(
        jax.checkpoint(attend_block, prevent_cse=False),
        cut_into_blocks(query),
        key.astype(accumulation_dtype)[None],
        value.astype(accumulation_dtype)[None],
        cut_into_blocks(bias),
        cut_into_blocks(mask),
        None if rng is None else jax.random.split(rng, num_blocks),
        block_size * jnp.arange(num_blocks),
        num_rows=num_blocks,
        group_size=1,
    )
    return out.reshape(-1, value.shape[1])[:length]


def _attend_block(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None,
    mask: jax.Array | None,
    rng: jax.Array | None,
    first_position: int | jax.Array,
    *,
    dropout_rate: float,
    is_causal: bool,
    precision: jax.lax.PrecisionLike,
    are_keys_shared: bool,
) -> jax.Array:
    """Attends with a block of queries [T, H], the first of which has that position."""
    if is_causal:
        query_positions = first_position + jnp.arange(len(query))
        is_past = query_positions[:, None] >= jnp.arange(len(key))[None]
        mask = is_past if mask is None else mask & is_past
    return attend(
        query,
        key.astype(query.dtype),
        value.astype(query.dtype),
        mask,
        bias=bias,
        scale=query.shape[-1] ** -0.5,
        drop=functools.partial(dropout, rate=dropout_rate, rng=rng),
        precision=precision,
        are_keys_shared=are_keys_shared,
    )
