"""Small operations, most of them in place of jax's own, each with its reason.

They are, in this order: dtypes and the precision of products, masks, blocks of a
sequence, rows of a table, and the layers of a network that have a gradient of their
own. The tests refuse numpy's silent broadcasting of arrays of different rank, so that
axes are added here and elsewhere by `[None]` and `expand_dims`.

Letters: L sequence length or rows, C blocks, V ids, D and E features.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# A cumulative sum over a sharded axis gathers it. So ranks are counted within blocks,
# and only the totals of these many blocks are summed across the sequence.
_NUM_RANK_BLOCKS = 1024
# Up to this many ids an accelerator sums rows by a product; see `sum_rows`.
MAX_IDS_BY_PRODUCT = 64
# Kernels of `dense` up to this many numbers have their gradient summed by sequence.
MAX_KERNEL_SIZE_BY_SEQUENCE = 2**16


def at_least_float32(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulators: float32, or float64 for float64."""
    with jax.numpy_dtype_promotion("standard"):  # The caller's may be strict.
        return jnp.promote_types(dtype, jnp.float32)


def cast_floats(array: jax.typing.ArrayLike, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The array in a dtype; integers, as those of a random key, stay as they are."""
    array = jnp.asarray(array)
    return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array


def tensor_core_precision(dtype: jax.typing.DTypeLike) -> lax.PrecisionLike:
    """The precision that gives float32's accuracy on an NVIDIA GPU's tensor cores.

    A number is the sum of three bfloat16 parts, and six products of parts are added.
    What they leave out is below float32's own rounding. GPUs before Ampere, and dtypes
    other than float32, get "highest", which uses the plain units.
    """
    if dtype == jnp.float32 and not is_before_ampere():
        return lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    return "highest"


def is_before_ampere() -> bool:
    """Whether this machine's device is an NVIDIA GPU that knows no bfloat16."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    return capability.startswith(("5", "6", "7"))


def einsum(letters: str, x: Any, y: Any, precision: Any = None) -> jax.Array:
    """jnp.einsum that accumulates in at least float32, and returns that dtype."""
    return jnp.einsum(
        letters,
        x,
        y,
        precision=precision,
        preferred_element_type=at_least_float32(x.dtype),  # type: ignore[arg-type]
    )


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


def mask_of_queries(
    query_mask: jax.Array | None,
    mask: jax.Array | None,
    *,
    num_queries: int,
    num_keys: int,
) -> jax.Array | None:
    """The mask of the queries that count: `query_mask`, if there is one.

    Without one, as many queries as keys are of the same tokens and share their `mask`;
    otherwise all count, and the result is None.
    """
    if query_mask is None and num_queries == num_keys:
        return mask
    return query_mask


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


def sum_rows(x: jax.Array, ids: jax.Array, num_ids: int) -> jax.Array:
    """The sum of the rows of each id.

    A CPU adds each row to the sum of its id, in at most a third of the time of a
    product with the one-hot matrix of ids. On a GPU the additions of one id wait for
    one another. On an H200, a batch of ListOps that is half padding takes 0.185 ms by
    additions and 0.052 ms by the product.

    Args:
      x: [L, E].
      ids: int [L], from 0 to num_ids. Rows of the last id, num_ids, are left out.
      num_ids: V.

    Returns:
      [V, E] in at least float32.
    """

    def scatter(x: jax.Array, ids: jax.Array) -> jax.Array:
        x = x.astype(at_least_float32(x.dtype))
        return jax.ops.segment_sum(x, ids, num_ids + 1)[:-1]

    multiply = functools.partial(_multiply, num_ids=num_ids)
    return lax.platform_dependent(
        x,
        ids,
        cpu=scatter,
        cuda=functools.partial(multiply, precision=tensor_core_precision(x.dtype)),
        default=functools.partial(multiply, precision="highest"),
    )


def _multiply(
    x: jax.Array, ids: jax.Array, num_ids: int, precision: lax.PrecisionLike
) -> jax.Array:
    """The sums of the rows of x [..., E] with each id, ids [...]: [V, E]."""
    numbers = jnp.expand_dims(jnp.arange(num_ids), range(1, 1 + ids.ndim))
    is_member = ids[None] == numbers  # [V, ...]
    return jnp.tensordot(
        is_member.astype(x.dtype),
        x,
        axes=ids.ndim,
        precision=precision,
        preferred_element_type=at_least_float32(x.dtype),
    )


def take_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Takes the rows of a table [V, E] of floats at ids [...], as [..., E].

    The row of an id that the table does not have, below 0 or from V on, is NaN. There
    is no derivative in forward mode. The gradient sums rows as `sum_rows` does. With
    256 ids, pictures of all colours take 0.053 ms by additions on an H200 and 0.185 ms
    by the product, so additions are taken there, and the rows of id 0, which may be
    most of them, are summed apart.

    Raises:
      ValueError: ids that are no integers.
    """
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"ids must be integers, got an array of {ids.dtype}: pass token ids"
        )
    # Under vmap, ids may be a tracer around a numpy array, which custom_vjp refuses.
    # Adding 0 makes it an array of jax; XLA drops the addition.
    return _take_rows(table, jnp.asarray(ids) + 0)


@jax.custom_vjp
def _take_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    return _get_rows(table, ids)


def _get_rows(table: jax.Array, ids: jax.Array) -> jax.Array:
    return table.at[ids].get(mode="fill", wrap_negative_indices=False)


def _take_rows_forward(table: jax.Array, ids: jax.Array) -> Any:
    return _take_rows(table, ids), (table, ids)


def _take_rows_backward(residuals: Any, cotangent: jax.Array) -> Any:
    table, ids = residuals
    ids = ids.astype(jnp.int32)  # A narrower dtype may not hold V.
    add_rows = functools.partial(_add_rows, table)
    if len(table) <= MAX_IDS_BY_PRODUCT:
        multiply = functools.partial(_multiply_rows, table)
        precision = tensor_core_precision(cotangent.dtype)
        cuda_gradient = functools.partial(multiply, precision=precision)
        default_gradient = functools.partial(multiply, precision="highest")
    else:
        cuda_gradient = functools.partial(_add_rows_and_sum_zeros, table)
        default_gradient = add_rows
    gradient = lax.platform_dependent(
        cotangent, ids, cpu=add_rows, cuda=cuda_gradient, default=default_gradient
    )
    return gradient, None


def _add_rows(table: jax.Array, cotangent: jax.Array, ids: jax.Array) -> jax.Array:
    """The gradient as jax has it: each row is added to the row of its id."""
    get_rows = functools.partial(_get_rows, ids=ids)
    (gradient,) = jax.linear_transpose(get_rows, table)(cotangent)
    return gradient


def _add_rows_and_sum_zeros(
    table: jax.Array, cotangent: jax.Array, ids: jax.Array
) -> jax.Array:
    """`_add_rows`, in which the rows of id 0 are summed apart.

    Most rows may be those of padding or of black pixels, which have id 0.
    """
    is_zero = ids == 0
    # The table has no row V, and what would be added to it is dropped.
    other_ids = jnp.where(is_zero, len(table), ids)
    gradient = _add_rows(table, cotangent, other_ids)
    cotangents_of_zero = jnp.where(jnp.expand_dims(is_zero, -1), cotangent, 0)
    return gradient.at[0].set(cotangents_of_zero.sum(range(ids.ndim)))


def _multiply_rows(
    table: jax.Array,
    cotangent: jax.Array,
    ids: jax.Array,
    precision: lax.PrecisionLike,
) -> jax.Array:
    """The gradient by a product with the one-hot matrix of ids."""
    return _multiply(cotangent, ids, len(table), precision).astype(table.dtype)


_take_rows.defvjp(_take_rows_forward, _take_rows_backward)


def gelu(x: jax.Array) -> jax.Array:
    """½ z (1 + erf(z / √2)) of z = x in at least float32; the result is in x's dtype.

    jax's own takes erfc, whose gradient keeps more arrays of the step in memory. Where
    that is no matter, `encoder.jax_gelu` has both forms.
    """
    z = x.astype(at_least_float32(x.dtype))
    return (0.5 * z * (1 + lax.erf(z * 0.5**0.5))).astype(x.dtype)


@jax.custom_vjp
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """x [..., L, D] times kernel [D, E], plus bias [E]; in x's dtype.

    The gradients of kernel and bias are summed in the dtype of the parameters.

    The kernel's gradient could be one product over all B · L rows. For that, XLA copies
    the rows transposed and recomputes the layer that made them, so that a train step
    takes a tenth longer (measured on a CPU, estimated for a GPU). A small kernel
    therefore gets one product for each sequence, and their sum. For a large kernel
    these products would need more memory than the rows: it gets the one product. There
    is no derivative in forward mode.
    """
    bias = bias.astype(x.dtype)
    return x @ kernel.astype(x.dtype) + jnp.expand_dims(bias, range(x.ndim - 1))


def _dense_forward(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Any:
    return dense(x, kernel, bias), (x, kernel)


def _dense_backward(residuals: Any, cotangent: jax.Array) -> Any:
    x, kernel = residuals
    # Three products read it: it is written to memory once, in its own dtype.
    cotangent = lax.optimization_barrier(cotangent)
    x_gradient = cotangent @ kernel.T.astype(x.dtype)

    is_small = kernel.size <= MAX_KERNEL_SIZE_BY_SEQUENCE
    letters = "...ld,...le->...de" if is_small else "...ld,...le->de"
    products = einsum(letters, x, cotangent)
    kernel_gradient = products.sum(range(products.ndim - 2), dtype=kernel.dtype)

    bias_gradient = cotangent.sum(range(cotangent.ndim - 1), dtype=kernel.dtype)
    return x_gradient, kernel_gradient, bias_gradient


dense.defvjp(_dense_forward, _dense_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> jax.Array:
    """(x − mean) / √(variance + ε) · scale + bias over the last axis of x [..., D].

    The variance is the mean of (x − mean)². As E[x²] − E[x]² it would lose its digits
    where the mean is large beside the spread. The backward pass keeps x and computes
    x − mean again: otherwise that would be one more array [..., D] in memory. There is
    no derivative in forward mode.

    Args:
      x: [..., D].
      scale: [D].
      bias: [D].
      epsilon: ε ≥ 0.

    Returns:
      [..., D] in at least float32.
    """
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float
) -> Any:
    z = x.astype(at_least_float32(x.dtype))
    mean = z.mean(-1, keepdims=True)
    variance = jnp.square(z - mean).mean(-1, keepdims=True)
    inverse_deviation = lax.rsqrt(variance + epsilon)
    normal = (z - mean) * inverse_deviation
    out = normal * _as_row(scale, z) + _as_row(bias, z)
    return out, (x, mean, inverse_deviation, scale)


def _layer_norm_backward(epsilon: float, residuals: Any, cotangent: jax.Array) -> Any:
    x, mean, inverse_deviation, scale = residuals
    normal = (x.astype(mean.dtype) - mean) * inverse_deviation
    normal_gradient = cotangent * _as_row(scale, cotangent)
    # A change of x along 1, or along itself, changes nothing.
    along_ones = normal_gradient.mean(-1, keepdims=True)
    along_normal = (normal_gradient * normal).mean(-1, keepdims=True) * normal
    x_gradient = inverse_deviation * (normal_gradient - along_ones - along_normal)

    axes = range(x.ndim - 1)
    scale_gradient = (cotangent * normal).sum(axes, dtype=scale.dtype)
    bias_gradient = cotangent.sum(axes, dtype=scale.dtype)
    return x_gradient.astype(x.dtype), scale_gradient, bias_gradient


def _as_row(vector: jax.Array, x: jax.Array) -> jax.Array:
    """A vector [D] that broadcasts to x [..., D], in x's dtype."""
    return jnp.expand_dims(vector.astype(x.dtype), range(x.ndim - 1))


layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)
