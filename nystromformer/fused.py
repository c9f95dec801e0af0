"""Exact attention by cuDNN's fused kernel, on NVIDIA GPUs in half precision.

The kernel is `jax.nn.dot_product_attention(implementation="cudnn")`, which needs no
memory for scores. What JAX asks of its inputs is seen to here: lengths are even, a mask
is a number of keys, and under `jax.vmap` all arrays are batched.

Letters: B batch, T query length, S key length, N heads, H head dim, E value dim.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.dot_product import attend
from nystromformer.precision import at_least_float32, is_before_ampere

HALF_PRECISION = (jnp.bfloat16, jnp.float16)
MAX_HEAD_DIM = 128  # on every GPU that has the kernel, from Ampere on
HEAD_DIM_MULTIPLE = 8


def can_fuse(query: jax.Array, key: jax.Array, value: jax.Array) -> bool:
    """Whether cuDNN is there and takes arrays of these shapes and dtypes.

    With several devices the answer is False: a sequence may be sharded over them, and
    the kernel cannot run on a shard.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, E].
    """
    arrays = (query, key, value)
    head_dim = query.shape[-1]
    is_half_precision = all(
        x.dtype == query.dtype and x.dtype in HALF_PRECISION for x in arrays
    )
    # In a program exported for every batch size, B is symbolic and not an int.
    has_known_sizes = all(isinstance(n, int) and n > 0 for x in arrays for n in x.shape)
    return (
        is_half_precision
        and has_known_sizes
        and key.shape == value.shape
        and head_dim <= MAX_HEAD_DIM
        and head_dim % HEAD_DIM_MULTIPLE == 0
        and jax.device_count() == 1
        and not is_before_ampere()
        and _has_cudnn()
    )


def _has_cudnn() -> bool:
    """Whether JAX finds cuDNN: it says so only when it is asked to trace the call."""
    x = jax.ShapeDtypeStruct((1, 2, 1, HEAD_DIM_MULTIPLE), jnp.bfloat16)
    attend_by_cudnn = functools.partial(
        jax.nn.dot_product_attention, implementation="cudnn"
    )
    try:
        jax.eval_shape(attend_by_cudnn, x, x, x)
    except RuntimeError:
        return False
    return True


def attend_fused(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    *,
    scale: float,
    dtype: jax.typing.DTypeLike,
    otherwise: Callable[..., jax.Array],
) -> jax.Array:
    """softmax(scale · Q Kᵀ) V by cuDNN where it can, and by `otherwise` elsewhere.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, E], finite.
      mask: [B, S] bool, True = attend; None = all.
      scale: factor of the scores.
      dtype: the dtype of the result. The kernel rounds to the dtype of the query.
      otherwise: a function of query, key and value with the same result, in dtype, for
        other devices and where `can_fuse` is False.

    Returns:
      [B, T, N, E] in dtype.
    """
    if not can_fuse(query, key, value):
        return otherwise(query, key, value)

    def attend_on_gpu(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        out = attend_with_lengths(query, key, value, mask, scale=scale)
        return out.astype(dtype)

    # The gradient keeps what every branch needs. This one keeps its inputs alone, so
    # that no scores are stored on a GPU.
    return lax.platform_dependent(
        query,
        key,
        value,
        cuda=attend_on_gpu,
        default=jax.checkpoint(otherwise),
    )


def attend_with_lengths(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None,
    *,
    scale: float,
    implementation: str = "cudnn",
) -> jax.Array:
    """`attend_fused` by JAX's function, which takes a number of keys and no mask.

    Attention does not depend on the order of the keys, so those to attend to come
    first. A sequence without any attends to its first key.

    Args:
      query: [B, T, N, H].
      key: [B, S, N, H].
      value: [B, S, N, E], finite.
      mask: [B, S] bool, True = attend; None = all.
      scale: factor of the scores.
      implementation: the argument of `jax.nn.dot_product_attention`.

    Returns:
      [B, T, N, E] in the dtype of the query.
    """
    batch_size, num_queries = query.shape[:2]
    num_keys = key.shape[1]
    lengths = None
    if mask is not None:
        order = jnp.argsort(~mask, axis=1, stable=True)
        key = _reorder(key, order)
        value = _reorder(value, order)
        lengths = jnp.maximum(mask.sum(1, dtype=jnp.int32), 1)
    elif num_keys % 2:
        # The row that makes the length even is no key.
        lengths = jnp.full(batch_size, num_keys, jnp.int32)

    out: Any = _call(
        scale,
        implementation,
        _with_even_length(query),
        _with_even_length(key),
        _with_even_length(value),
        lengths,
    )
    return out[:, :num_queries]


def attend_fused_head(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    *,
    scale: float = 1.0,
    precision: lax.PrecisionLike = None,
) -> jax.Array:
    """`dot_product.attend` of one head of one sequence, by `attend_fused`.

    Args:
      query: [T, H].
      key: [S, H].
      value: [S, E], finite.
      mask: [S] bool, True = attend; None = all.
      scale: factor of the scores.
      precision: the precision of the products that cuDNN does not compute.

    Returns:
      [T, E] in at least float32. The kernel has rounded it to the dtype of the query.
    """

    def attend_alone(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        out = attend(
            query[0, :, 0],
            key[0, :, 0],
            value[0, :, 0],
            mask,
            scale=scale,
            precision=precision,
        )
        return out[None, :, None]

    out = attend_fused(
        query[None, :, None],
        key[None, :, None],
        value[None, :, None],
        None if mask is None else mask[None],
        scale=scale,
        dtype=at_least_float32(query.dtype),
        otherwise=attend_alone,
    )
    return out[0, :, 0]


def _reorder(x: jax.Array, order: jax.Array) -> jax.Array:
    """x [B, S, ...] with the rows of each sequence in that order, int [B, S]."""

    def of_one_sequence(x: jax.Array, order: jax.Array) -> jax.Array:
        # As each row is taken once, its gradient is written and not added.
        return x.at[order].get(unique_indices=True, mode="promise_in_bounds")

    return jax.vmap(of_one_sequence)(x, order)


def _with_even_length(x: jax.Array) -> jax.Array:
    """x [B, L, N, H] with a row of zeros behind an odd L: the gradient needs even L."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _call(
    scale: float,
    implementation: Any,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    lengths: jax.Array | None,
) -> jax.Array:
    """Calls JAX's function, and its gradient, with all arrays batched or none."""
    attend_by_jax, qkv = _bind(scale, implementation, query, key, value, lengths)
    return attend_by_jax(*qkv)


def _call_forward(scale: float, implementation: Any, *arrays: Any) -> Any:
    attend_by_jax, qkv = _bind(scale, implementation, *arrays)
    # This kernel also writes what its gradient needs.
    out, pull_back = jax.vjp(attend_by_jax, *qkv)
    return out, (pull_back, qkv[0])


def _bind(
    scale: float,
    implementation: Any,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    lengths: jax.Array | None,
) -> tuple[Callable[..., Any], list[jax.Array]]:
    """Returns JAX's function of query, key and value, and these three, batched."""
    query_lengths = None
    if lengths is not None:
        query_lengths = jnp.full_like(lengths, query.shape[1])
    *qkv, query_lengths, lengths = _batch_all(query, key, value, query_lengths, lengths)
    attend_by_jax = functools.partial(
        jax.nn.dot_product_attention,
        scale=scale,
        query_seq_lengths=query_lengths,
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    return attend_by_jax, qkv


def _call_backward(
    scale: float, implementation: Any, residuals: Any, cotangent: jax.Array
) -> Any:
    pull_back, query = residuals
    _, cotangent = _batch_all(query, cotangent)
    query_gradient, key_gradient, value_gradient = pull_back(cotangent)
    return query_gradient, key_gradient, value_gradient, None


_call.defvjp(_call_forward, _call_backward)


def _batch_all(*arrays: jax.Array | None) -> list[Any]:
    """Makes all arrays batched under `jax.vmap` if one of them is; their values stay.

    The batching rule of JAX's function fails on a mixture.
    """
    # This bool is made of all arrays. So it is batched if one of them is, and so is
    # what `where` returns. Both of its choices are the same array, and XLA drops it.
    is_first_zero = [x.ravel()[0] == 0 for x in arrays if x is not None]
    is_any_zero = functools.reduce(jnp.logical_or, is_first_zero)
    return [None if x is None else jnp.where(is_any_zero, x, x) for x in arrays]
