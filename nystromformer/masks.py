"""Masks of keys and of queries: their checks, and what they leave out.

A mask is boolean, True = valid. Its way through `nystrom_attention`:

    attention/base.py    `check_key_mask` makes it [B, S], `find_query_mask` says for
                         which queries it holds too, and `zero_padding` writes zeros
    nystrom.py           landmarks are means of valid tokens, and a landmark without
                         any does not exist; few valid tokens are `FewTokens`
    dot_product.py       `attend` gives the keys that it excludes no weight

Letters: B batch, T query length, S key length, L length, C blocks.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from nystromformer.blocks import to_blocks

# A query that does not count is garbage from this size on: no network makes such
# numbers, and its scores might overflow.
LARGEST_QUERY = 2.0**64
# A cumulative sum over a sharded axis gathers it. So ranks are counted within blocks,
# and only the totals of these many blocks are summed across the sequence.
_NUM_RANK_BLOCKS = 1024


def check_key_mask(mask: jax.Array, batch: int, length: int) -> jax.Array:
    """The mask of the keys, [B, S], from a mask that broadcasts to [B, 1, 1, S].

    Raises:
      ValueError: the mask varies over queries or heads, or is not boolean.
    """
    if jnp.ndim(mask) == 4 and jnp.shape(mask)[1:3] != (1, 1):
        raise ValueError(
            "this attention takes one mask of keys for all heads and queries, "
            f"[B, 1, 1, S], got {jnp.shape(mask)}: if it only says which tokens are "
            "padding, pass valid[:, None, None, :], where valid is [B, S]; for a "
            "causal or another mask take softmax attention"
        )
    mask = mask_with_four_axes(mask, (batch, 1, 1, length))
    return jnp.broadcast_to(mask[:, 0, 0, :], (batch, length))


def check_query_mask(
    query_mask: jax.typing.ArrayLike, batch: int, length: int
) -> jax.Array:
    """The mask of the queries, [B, T], from one that broadcasts to [B, 1, 1, T].

    Raises:
      ValueError: a query_mask that does not broadcast or is not boolean.
    """
    shape = (batch, 1, 1, length)
    query_mask = mask_with_four_axes(query_mask, shape, name="query_mask")
    return jnp.broadcast_to(query_mask[:, 0, 0, :], (batch, length))


def mask_with_four_axes(
    mask: jax.typing.ArrayLike, shape: Sequence[int], name: str = "mask"
) -> jax.Array:
    """`with_four_axes` of a mask, which must be boolean.

    Raises:
      ValueError: it does not broadcast to that shape, or it is not boolean.
    """
    try:
        mask = with_four_axes(name, mask, shape)
    except ValueError as error:
        if jnp.ndim(mask) >= 4:
            raise  # It has these axes already.
        raise ValueError(
            f"{error}: if it says which tokens are padding, as [B, L], pass "
            f"{name}[:, None, None, :]"
        ) from error
    if mask.dtype != jnp.bool_:
        raise ValueError(
            f"{name} must be boolean (True = valid), got {mask.dtype}; flax's "
            "make_attention_mask and combine_masks need dtype=bool, and decode=True, "
            "which is causal, makes a mask of floats"
        )
    return mask


def with_four_axes(
    name: str, array: jax.typing.ArrayLike, shape: Sequence[int]
) -> jax.Array:
    """Puts axes of size 1 in front of a mask or a bias, so that it has four.

    Args:
      name: "mask", "query_mask" or "bias", for the message.
      array: any array of at most four axes.
      shape: the four sizes that it must broadcast to.

    Raises:
      ValueError: it does not broadcast to that shape.
    """
    array = jnp.asarray(array)
    sizes = (1,) * (4 - array.ndim) + array.shape
    fits = len(sizes) == len(shape) and all(
        size in (1, full_size) for size, full_size in zip(sizes, shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"a {name} of shape {array.shape} does not broadcast to {tuple(shape)}"
        )
    return array.reshape(sizes)


def find_query_mask(
    query_mask: jax.Array | None,
    mask: jax.Array | None,
    *,
    num_queries: int,
    num_keys: int,
) -> tuple[jax.Array | None, bool]:
    """Decides which queries count; nothing else decides it.

    Without a `query_mask`, as many queries as keys are the same tokens: this is
    self-attention, and `mask` holds for both.

    Returns:
      The mask of the queries, None if all count; and whether this is self-attention.
    """
    if query_mask is None and num_queries == num_keys:
        return mask, True
    return query_mask, False


def zero_masked(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Writes zeros where the mask is False; a product with the mask would keep NaN.

    Args:
      x: any shape and dtype.
      mask: bool, of the shape of x's first axes; None leaves x as it is.

    Returns:
      An array of x's shape and dtype.
    """
    if mask is None:
        return x
    mask = jnp.expand_dims(mask, range(mask.ndim, x.ndim))
    # A plain 0 would make integers of bools.
    return jnp.where(mask, x, jnp.zeros_like(x, shape=()))


def zero_garbage(query: jax.Array, query_mask: jax.Array | None) -> jax.Array:
    """Queries without the NaN and the huge numbers of those that do not count.

    Their scores, times the zero cotangent of the output, would make the gradient NaN.
    Ordinary numbers are kept: where T = S and nobody said otherwise, the queries may
    be of other tokens than the mask.

    Args:
      query: [T, ...] or [B, T, ...].
      query_mask: [T] or [B, T] bool, True = the query counts; None = all.
    """
    if query_mask is None:
        return query
    counts = jnp.expand_dims(query_mask, range(query_mask.ndim, query.ndim))
    # float16 ends before that size.
    limit = min(LARGEST_QUERY, float(jnp.finfo(query.dtype).max))
    is_ordinary = jnp.abs(query) < limit
    return jnp.where(counts | is_ordinary, query, 0)


def zero_padding(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None,
    query_mask: jax.Array | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Zeroes keys and values that the mask excludes, and garbage among the queries.

    Args:
      query: [T, ...] or [B, T, ...].
      key: [S, ...] or [B, S, ...].
      value: [S, ...] or [B, S, ...].
      mask: [S] or [B, S] bool, True = attend; None = all.
      query_mask: [T] or [B, T] bool, True = the query counts; None = all.
    """
    query = zero_garbage(query, query_mask)
    return query, zero_masked(key, mask), zero_masked(value, mask)


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
