"""Exact attention in groups, so that not all scores need to exist at once.

A head of 8,192 tokens has 67 million scores. The work is cut into groups:

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
from nystromformer.precision import at_least_float32

# The most scores that exist at a time on an accelerator: they limit a block of queries.
MAX_SCORES = 2**27
# The number of scores that stay in the cache of a CPU.
CPU_SCORES = 2**19
# The most queries of a block on a CPU. Up to twice as many stay together, if their
# scores fit into the cache.
CPU_BLOCK = 128


class Inputs(NamedTuple):
    """The arrays of attention: of a batch, or of one sequence, head or block of it.

    Each axis of bias, mask and rngs may be 1, for all examples, heads or queries.
    """

    query: jax.Array  # [B, T, N, H]
    key: jax.Array  # [B, S, N, H]
    value: jax.Array  # [B, S, N, E]
    bias: jax.Array | None  # [B, N, T, S]
    mask: jax.Array | None  # [B, N, T, S] bool, True = attend
    rngs: jax.Array | None  # [B, N] keys for the dropout of weights; None for none


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


class Settings(NamedTuple):
    """What all groups share."""

    group_sizes: GroupSizes
    dropout_rate: float  # the probability that a weight is dropped, if there are rngs
    is_causal: bool  # whether query t attends to no key after t
    precision: jax.lax.PrecisionLike  # of the products


def attend_in_groups(inputs: Inputs, settings: Settings) -> jax.Array:
    """softmax(Q Kᵀ / √H + bias) V with a bounded number of scores at a time.

    Returns:
      [B, T, N, E] in the dtype of the query.
    """
    out = map_rows(
        functools.partial(_attend_sequence, settings=settings),
        inputs,
        num_rows=inputs.query.shape[0],
        group_size=settings.group_sizes.sequences,
    )
    return out.astype(inputs.query.dtype)


def _attend_sequence(inputs: Inputs, settings: Settings) -> jax.Array:
    """Attends with the heads of one sequence, some at a time, to [T, N, E]."""
    heads = inputs._replace(
        query=inputs.query.swapaxes(0, 1),
        key=inputs.key.swapaxes(0, 1),
        value=inputs.value.swapaxes(0, 1),
    )
    out = map_rows(
        functools.partial(_attend_head, settings=settings),
        heads,
        num_rows=len(heads.query),
        group_size=settings.group_sizes.heads,
    )
    return out.swapaxes(0, 1)


def _attend_head(inputs: Inputs, settings: Settings) -> jax.Array:
    """Attends with one head of one sequence, a block of queries at a time, to [T, E].

    With several blocks the backward pass computes the scores again.
    """
    query, key, value, bias, mask, rng = inputs
    length = len(query)
    block_size = settings.group_sizes.queries
    num_blocks = max(1, -(-length // block_size))
    attend_block = functools.partial(
        _attend_block, settings=settings, are_keys_shared=num_blocks > 1
    )
    if num_blocks == 1:
        return attend_block((inputs, 0))

    def cut_into_blocks(array: jax.Array) -> jax.Array:
        """[T, …] in blocks; a single row serves all of them."""
        if len(array) == 1:
            return array[None]
        fill = num_blocks * block_size - length
        padded = jnp.pad(array, ((0, fill), (0, 0)))
        return padded.reshape(num_blocks, block_size, array.shape[1])

    # Keys and values are float32 at least: their gradient is a sum over blocks, which
    # JAX accumulates in their dtype.
    accumulation_dtype = at_least_float32(key.dtype)
    blocks = Inputs(
        query=cut_into_blocks(query),
        key=key.astype(accumulation_dtype)[None],
        value=value.astype(accumulation_dtype)[None],
        bias=None if bias is None else cut_into_blocks(bias),
        mask=None if mask is None else cut_into_blocks(mask),
        rngs=None if rng is None else jax.random.split(rng, num_blocks),
    )
    first_positions = block_size * jnp.arange(num_blocks)
    out = map_rows(
        jax.checkpoint(attend_block, prevent_cse=False),
        (blocks, first_positions),
        num_rows=num_blocks,
        group_size=1,
    )
    return out.reshape(-1, value.shape[1])[:length]


def _attend_block(
    block: tuple[Inputs, int | jax.Array], settings: Settings, are_keys_shared: bool
) -> jax.Array:
    """Attends with a block of queries and the position of the first of them."""
    (query, key, value, bias, mask, rng), first_position = block
    if settings.is_causal:
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
        drop=functools.partial(dropout, rate=settings.dropout_rate, rng=rng),
        precision=settings.precision,
        are_keys_shared=are_keys_shared,
    )


def map_rows(
    function: Callable[[Any], jax.Array],
    arrays: Any,
    *,
    num_rows: Any,
    group_size: int | None,
) -> jax.Array:
    """Stacks function(row 0 of all arrays), function(row 1 of all arrays), ….

    Args:
      function: a function of a tree as `arrays`, of a row of each.
      arrays: a tree of arrays of num_rows rows. One of a single row serves every call.
      num_rows: the number of calls; it may be symbolic if group_size is None.
      group_size: how many calls are made at a time, by `jax.vmap`; None = all.

    Returns:
      The results along a new first axis.
    """
    leaves, structure = jax.tree.flatten(arrays)
    is_single = [leaf.shape[0] == 1 for leaf in leaves]
    single_rows = [leaf[0] for leaf in leaves if leaf.shape[0] == 1]
    all_rows = [leaf for leaf in leaves if leaf.shape[0] != 1]

    def call(rows: list[jax.Array]) -> jax.Array:
        """Calls the function on a row of each array, some of which are single."""
        # The tree's arrays in their order: each is the next one of its kind.
        single = iter(single_rows)
        others = iter(rows)
        inputs = [next(single if is_one else others) for is_one in is_single]
        return function(structure.unflatten(inputs))

    if num_rows == 1:
        return call(all_rows)[None]
    if group_size is None or group_size >= num_rows:
        return jax.vmap(call)(all_rows)
    batch_size = group_size if group_size > 1 else None
    return jax.lax.map(call, all_rows, batch_size=batch_size)
