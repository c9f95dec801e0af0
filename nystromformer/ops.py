"""Small operations, most of them in place of jax's own, each with its reason.

The tests refuse numpy's silent broadcasting of arrays of different rank, so that axes
are added here and elsewhere by `[None]` and `expand_dims`.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.precision import at_least_float32

# Kernels of `dense` up to this many numbers have their gradient summed by sequence.
MAX_KERNEL_SIZE_BY_SEQUENCE = 2**16


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


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def exp_in_dtype(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """exp(x) in dtype, written to memory once.

    The result is also all that the gradient keeps, where jax would keep it in x's
    dtype, too.
    """
    return lax.optimization_barrier(jnp.exp(x).astype(dtype))


@exp_in_dtype.defjvp
def _exp_in_dtype_jvp(dtype: Any, primals: Any, tangents: Any) -> Any:
    (x,) = primals
    (x_tangent,) = tangents
    out = exp_in_dtype(x, dtype)
    return out, out * x_tangent.astype(dtype)


def einsum(letters: str, x: Any, y: Any, precision: Any = None) -> jax.Array:
    """jnp.einsum that accumulates in at least float32, and returns that dtype."""
    return jnp.einsum(
        letters,
        x,
        y,
        precision=precision,
        preferred_element_type=at_least_float32(x.dtype),  # type: ignore[arg-type]
    )


def materialize_on_cpu(x: jax.Array) -> jax.Array:
    """Writes x to memory on a CPU.

    Otherwise XLA would fuse a transposition of x into the product that reads it.
    """
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def long_dot(letters: str, x: Any, y: Any, precision: Any) -> jax.Array:
    """`einsum` for three products, laid out for a CPU. L is the longest axis.

        "lh,mh->lm"   scores X Yᵀ
        "lm,lh->mh"   Wᵀ V
        "lm,mh->lh"   W V

    XLA's CPU backend is slow, and loses digits, where it sums down columns: in Wᵀ V,
    and in the gradient of Y in X Yᵀ. Here both are computed from a transposed copy. The
    copy takes as long as one product saves, so it pays only where several products
    share it.
    """
    if letters == "lm,lh->mh":
        transposed = materialize_on_cpu(y.T)
        return materialize_on_cpu(einsum("hl,lm->hm", transposed, x, precision)).T
    return einsum(letters, x, y, precision)


@long_dot.defjvp
def _long_dot_jvp(letters: str, precision: Any, factors: Any, tangents: Any) -> Any:
    x, y = factors
    x_tangent, y_tangent = tangents
    out = long_dot(letters, x, y, precision)
    tangent_of_x = einsum(letters, x_tangent, y, precision)
    if letters == "lh,mh->lm":
        # The gradient of y is the transpose of this product and sums over L.
        x_transposed = materialize_on_cpu(x.T)
        y_transposed = materialize_on_cpu(y_tangent.T)
        tangent_of_y = einsum("hl,hm->lm", x_transposed, y_transposed, precision)
    else:
        tangent_of_y = einsum(letters, x, y_tangent, precision)
    return out, tangent_of_x + tangent_of_y


def _hash(position: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """triple32 of Wellons' hash-prospector, with two random words."""
    x = position + first
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11) ^ second) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def random_uint16(rng: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Random uint16 numbers: each is a hash of its position and of the key.

    The hash is far less work than Threefry. Its 32 bits make two numbers. A CPU
    computes one hash for both. An accelerator computes it for each number, where the
    number is used, so that nothing is stored. The numbers are the same.
    """
    first, second = jax.random.bits(rng, (2,), jnp.uint32)

    def hash_pairs() -> jax.Array:
        size = math.prod(shape)
        pairs = _hash(lax.iota(jnp.uint32, (size + 1) // 2), first, second)
        halves = lax.bitcast_convert_type(pairs, jnp.uint16)  # the lower one first
        return halves.reshape(-1)[:size].reshape(shape)

    def hash_each() -> jax.Array:
        # The place of each number in the flat array, row by row, modulo 2³².
        position = jnp.zeros(shape, jnp.uint32)
        for axis, size in enumerate(shape):
            index = lax.broadcasted_iota(jnp.uint32, shape, axis)
            position = position * jnp.uint32(size % 2**32) + index

        # Hash i makes the numbers 2 i and 2 i + 1, of its lower and its upper half.
        pair = _hash(position // 2, first, second)
        shift = position % 2 * 16
        return (pair >> shift).astype(jnp.uint16)

    return lax.platform_dependent(cpu=hash_pairs, default=hash_each)


def split_rng(rng: jax.Array | None, num: int) -> list[jax.Array | None]:
    """Splits a key into `num` keys; None becomes as many None."""
    if rng is None:
        return [None] * num
    return list(jax.random.split(rng, num))


def dropout(x: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Zeroes each number with probability `rate` and scales the others.

    It draws 16 bits a number. With the 32 bits of Threefry that jax draws, a train step
    takes 1.1 to 1.3 times as long on a CPU.

    Args:
      x: any shape.
      rate: the probability, in [0, 1). It is rounded to a multiple of 2⁻¹⁶, and the
        scale fits the rounded one.
      rng: a key; None means no dropout.

    Returns:
      An array of x's shape and dtype.
    """
    # At least one of 2¹⁶ values is kept: otherwise the scale would be infinite.
    num_dropped_values = min(round(rate * 2**16), 2**16 - 1)
    if rng is None or num_dropped_values == 0:
        return x
    is_kept = random_uint16(rng, x.shape) >= num_dropped_values
    kept_fraction = 1 - num_dropped_values / 2**16
    return jnp.where(is_kept, x / kept_fraction, 0).astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """½ z (1 + erf(z / √2)) of z = x in at least float32; the result is in x's dtype.

    jax's own takes erfc, whose gradient keeps more arrays of the step in memory. Where
    that is no matter, `layers.jax_gelu` has both forms.
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
