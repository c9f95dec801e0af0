"""Exact attention: the reference that every approximation is measured against.

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
from typing import Any, NamedTuple, Unpack, cast

import jax
import jax.numpy as jnp
from flax.nnx.nn.attention import dot_product_attention_weights

from nystromformer.attention.base import (
    Attention,
    CommonArguments,
    check_bias,
    check_shapes,
    floating_dtype,
)
from nystromformer.dot_product import attend
from nystromformer.dropout import dropout
from nystromformer.fused import attend_fused
from nystromformer.masks import (
    check_query_mask,
    find_query_mask,
    mask_with_four_axes,
    with_four_axes,
    zero_garbage,
    zero_masked,
)
from nystromformer.precision import at_least_float32
from nystromformer.validation import check_rate

# The most scores that exist at a time on an accelerator: they limit a block of queries.
MAX_SCORES = 2**27
# The number of scores that stay in the cache of a CPU.
CPU_SCORES = 2**19
# The most queries of a block on a CPU. Up to twice as many stay together, if their
# scores fit into the cache.
CPU_BLOCK = 128


class SoftmaxAttention(Attention):
    """softmax(Q Kᵀ / √H + bias) V, in O(T · S) time and a bounded number of scores.

    On a single NVIDIA GPU in bfloat16 or float16 cuDNN's fused kernel computes it,
    unless there is a bias, dropout, or a mask that is not of padding: see
    `nystromformer.fused`. The kernel has no derivative in forward mode.

    With `decode=True` Flax's attention layers make a mask of floats, which needs a cast
    on its way here.
    """

    paper_options = {"dropout_rate": 0.1}

    def __init__(
        self,
        *,
        dropout_rate: float = 0.0,
        fused: bool = True,
        **common: Unpack[CommonArguments],
    ):
        """Makes the attention.

        Args:
          dropout_rate: the probability that a weight is dropped, in [0, 1), where a
            call names none. Inside a layer of Flax it has no effect: the layer passes
            its own.
          fused: whether cuDNN's kernel is taken where it can be.
          **common: the arguments of every `Attention`.

        Raises:
          ValueError: a rate outside [0, 1).
        """
        super().__init__(**common)
        check_rate("dropout_rate", dropout_rate)
        self.dropout_rate = dropout_rate
        self.fused = fused

    @property
    def draws_in_training(self) -> bool:
        return self.dropout_rate > 0

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        bias: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        query_mask: jax.typing.ArrayLike | None = None,
        dropout_rng: jax.Array | None = None,
        dropout_rate: float | None = None,
        broadcast_dropout: bool = True,
        deterministic: bool = False,
        dtype: jax.typing.DTypeLike | None = None,
        precision: jax.lax.PrecisionLike = None,
        module: Any = None,
        is_causal: bool = False,
    ) -> jax.Array:
        """Attends, and honours what other attentions refuse.

        Args:
          query: [B, T, N, H].
          key: [B, S, N, H].
          value: [B, S, N, E].
          bias: None, or an array that broadcasts to [B, N, T, S].
          mask: None, or bool that broadcasts to [B, N, T, S], True = attend. One that
            broadcasts to [B, 1, 1, S] is padding, as for every `Attention`.
          query_mask: as for every `Attention`.
          dropout_rng: the key of the dropout of weights.
          dropout_rate: the probability that a weight is dropped; None takes the option.
          broadcast_dropout: whether all heads of the batch drop the same weights.
          deterministic: whether nothing is dropped.
          dtype: the dtype of the large products and of the output; None takes the
            dtype of the inputs.
          precision: the precision of the large products.
          module: sows the weights into this module, in O(T · S) memory.
          is_causal: whether query t attends to no key after t.

        Returns:
          [B, T, N, E] in dtype.

        Raises:
          ValueError: shapes that do not fit, integers without a dtype, a boolean bias,
            or dropout without dropout_rng.
        """
        check_shapes(query, key, value)
        self._check_sizes(query, key, query_mask)
        weights_shape = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        if bias is not None:
            bias = with_four_axes("bias", bias, weights_shape)
            check_bias(bias)
        if mask is not None:
            mask = mask_with_four_axes(mask, weights_shape)
        padding_mask = _padding_mask(mask, key.shape[:2])
        # Queries of padding may overflow in the dtype, and are then zeroed.
        dtype = floating_dtype(dtype, query, key, value)
        query, key, value = [x.astype(dtype) for x in (query, key, value)]
        if query_mask is not None:
            query_mask = check_query_mask(query_mask, *query.shape[:2])
        query_mask, _ = find_query_mask(
            query_mask,
            padding_mask,
            num_queries=query.shape[1],
            num_keys=key.shape[1],
        )
        query = zero_garbage(query, query_mask)
        key = zero_masked(key, padding_mask)
        value = zero_masked(value, padding_mask)

        if module is not None:
            # It sows all of them, without dropout.
            dot_product_attention_weights(
                query,
                key,
                bias,
                mask,
                precision=cast(Any, precision),  # flax's type is narrower than jax's
                module=module,
                is_causal=is_causal,
            )
        # A rate may be an array, which is no static argument of `jax.jit`.
        rate = float(self.dropout_rate if dropout_rate is None else dropout_rate)
        rngs = None
        if rate > 0 and not deterministic:
            rngs_shape = (1, 1) if broadcast_dropout else weights_shape[:2]
            rngs = _dropout_keys(dropout_rng, rngs_shape, rate)
        return _attend_batch(
            Inputs(query, key, value, bias, mask, rngs),
            padding_mask,
            fused=self.fused,
            settings=Settings(
                group_sizes=choose_group_sizes(query.shape, num_keys=key.shape[1]),
                dropout_rate=rate,
                is_causal=is_causal,
                precision=precision,
            ),
        )


def _padding_mask(mask: jax.Array | None, shape: tuple[int, ...]) -> jax.Array | None:
    """The mask of four axes as [B, S], that shape; None if it is not one of padding."""
    if mask is None or mask.shape[1:3] != (1, 1):
        return None
    return jnp.broadcast_to(mask[:, 0, 0, :], shape)


def _dropout_keys(
    rng: jax.Array | None, shape: tuple[int, ...], rate: float
) -> jax.Array:
    """Splits the key of the dropout of weights.

    Raises:
      ValueError: there is none.
    """
    if rng is None:
        raise ValueError(
            f"dropout_rate={rate} needs a dropout_rng, or deterministic=True"
        )
    return jax.random.split(rng, shape)


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


@functools.partial(jax.jit, static_argnames=("fused", "settings"))
def _attend_batch(
    inputs: Inputs,
    padding_mask: jax.Array | None,
    *,
    fused: bool,
    settings: Settings,
) -> jax.Array:
    """Attends by cuDNN's kernel where it can, and in groups elsewhere.

    A caller that compiles nothing would otherwise compile the loops over groups at each
    call. `padding_mask` is the mask as [B, S], or None without a mask, or if the mask
    is not one of padding.
    """

    def attend_without_kernel(
        query: jax.Array, key: jax.Array, value: jax.Array
    ) -> jax.Array:
        others = inputs._replace(query=query, key=key, value=value)
        return attend_in_groups(others, settings)

    query, key, value, bias, mask, rngs = inputs
    is_padding = mask is None or padding_mask is not None
    can_be_fused = is_padding and bias is None and rngs is None
    if not fused or settings.is_causal or not can_be_fused:
        return attend_in_groups(inputs, settings)
    return attend_fused(
        query,
        key,
        value,
        padding_mask,
        scale=query.shape[-1] ** -0.5,
        dtype=query.dtype,
        otherwise=attend_without_kernel,
    )


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
