"""Checks of the arrays that an attention is called with: their axes and their dtypes.

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

# A query that does not count is garbage from this size on: no network makes such
# numbers, and its scores might overflow.
LARGEST_QUERY = 2.0**64


def check_shapes(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    """Raises ValueError unless shapes are [B, T, N, H], [B, S, N, H], [B, S, N, E].

    S is at least 1, as there is no mean over no values. Queries and keys have the same
    number of heads: grouped-query attention is an error.
    """
    if query.ndim == 3:
        raise ValueError(
            f"query must be [B, T, N, H], got {query.shape}: add a batch axis to the "
            "inputs, as in x[None]"
        )
    has_four_axes = query.ndim == key.ndim == value.ndim == 4
    if has_four_axes and query.shape[2] > key.shape[2]:
        raise ValueError(
            f"query has {query.shape[2]} heads and key {key.shape[2]}: repeat those of "
            "key and value, as in jnp.repeat(key, num_repeats, axis=2)"
        )
    fits_key = has_four_axes and (
        query.shape[0] == key.shape[0] and query.shape[2:] == key.shape[2:]
    )
    if not fits_key or value.shape[:3] != key.shape[:3]:
        raise ValueError(
            "query, key and value must be [B, T, N, H], [B, S, N, H], [B, S, N, E]; "
            f"got {query.shape}, {key.shape}, {value.shape}"
        )
    if key.shape[1] == 0:
        raise ValueError(f"there must be at least one key, got key {key.shape}")


def floating_dtype(
    dtype: jax.typing.DTypeLike | None, *arrays: jax.Array
) -> jax.typing.DTypeLike:
    """The dtype of an attention's result: the one asked for, or that of its arrays.

    Raises:
      ValueError: for a dtype of integers, since the result would be rounded.
    """
    dtype = dtype or jnp.result_type(*arrays)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(
            "query, key and value must be floating-point numbers, got "
            f"{jnp.dtype(dtype)}: pass dtype=jnp.float32, or convert them"
        )
    return dtype


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
    if not _broadcasts(sizes, shape):
        raise ValueError(
            f"a {name} of shape {array.shape} does not broadcast to {tuple(shape)}"
        )
    return array.reshape(sizes)


def _broadcasts(sizes: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an array of these sizes broadcasts to a shape, without further axes."""
    if len(sizes) != len(shape):
        return False
    return all(
        size in (1, full_size) for size, full_size in zip(sizes, shape, strict=True)
    )


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


def check_bias(bias: jax.Array) -> None:
    """Raises ValueError for a boolean bias, which is a mask in the place of a bias.

    Behind the values PyTorch's function takes a mask, and JAX's and Flax's a bias.
    Added to the scores, True would be a 1 and mask nothing.
    """
    if jnp.result_type(bias) == jnp.bool_:
        raise ValueError(
            "a bias is numbers to add to the scores, got a boolean array of shape "
            f"{jnp.shape(bias)}: pass a mask by its name, as in mask=mask"
        )


def key_mask(mask: jax.Array, batch: int, length: int) -> jax.Array:
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
