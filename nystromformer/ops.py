"""Replacements of jax's own sums, dropout and dense product, each with its reason."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

NARROW = 2**16  # numbers of a kernel whose gradient is summed by sequence


def at_least_float32(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulators: float32, or float64 for float64."""
    with jax.numpy_dtype_promotion("standard"):  # also where the caller is strict
        return jnp.promote_types(dtype, jnp.float32)


def zeroed(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """x with zeros where the mask of its first axes is False; None = x as it is.

    A product with the mask would keep NaN.
    """
    if mask is None:
        return x
    return jnp.where(jnp.expand_dims(mask, range(mask.ndim, x.ndim)), x, 0)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def exp_in(x: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """exp(x) in dtype, materialised once; its gradient keeps nothing else."""
    return lax.optimization_barrier(jnp.exp(x).astype(dtype))


@exp_in.defjvp
def _exp_in_jvp(dtype: Any, primals: Any, tangents: Any) -> Any:
    y = exp_in(*primals, dtype)
    return y, y * tangents[0].astype(dtype)


def einsum(letters: str, x: Any, y: Any, precision: Any = None) -> jax.Array:
    """jnp.einsum that accumulates in at least float32 and returns that dtype."""
    options: Any = {"preferred_element_type": at_least_float32(x.dtype)}
    return jnp.einsum(letters, x, y, precision=precision, **options)


def in_memory(x: jax.Array) -> jax.Array:
    """x, materialised on a CPU, so that no product there absorbs its transposition."""
    return lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda x: x)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 3))
def long_dot(letters: str, x: Any, y: Any, precision: Any) -> jax.Array:
    """`einsum` with a [L, M], L ≥ M, which a CPU reads by rows where it sums over L.

    Wᵀ X is (Xᵀ W)ᵀ there, and so is the gradient of Y in X Yᵀ: a product by columns is
    slower and loses digits of long sums. Turning X costs what one product saves.
    """
    if letters == "lm,lh->mh":
        return in_memory(einsum("hl,lm->hm", in_memory(y.T), x, precision)).T
    return einsum(letters, x, y, precision)


@long_dot.defjvp
def _long_dot_jvp(letters: str, precision: Any, factors: Any, tangents: Any) -> Any:
    (x, y), (of_x, of_y) = factors, tangents
    out = long_dot(letters, x, y, precision)
    tangent = einsum(letters, of_x, y, precision)
    if letters == "lh,mh->lm":  # the transpose of this product is the gradient of y
        letters, x, of_y = "hl,hm->lm", in_memory(x.T), in_memory(of_y.T)
    return out, tangent + einsum(letters, x, of_y, precision)


def tensor_cores(dtype: jax.typing.DTypeLike) -> lax.PrecisionLike:
    """The precision that gives float32's accuracy on an NVIDIA GPU's tensor cores.

    Six products of the three bfloat16 parts of each number; what they leave out is
    below float32's own rounding. "highest", and GPUs before Ampere, take plain units.
    """
    six = lax.DotAlgorithmPreset.BF16_BF16_F32_X6
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    can = dtype == jnp.float32 and not capability.startswith(("5", "6", "7"))
    return six if can else "highest"


def random_halves(rng: jax.Array, shape: Sequence[int]) -> jax.Array:
    """uint16 of a shape: a hash of each position and of two random words of the key.

    The hash is triple32 of Wellons' hash-prospector, far less work than Threefry. A CPU
    takes both halves of each 32 bits; an accelerator makes them anew for each number,
    where it needs them, so that they never lie in memory.
    """
    first, second = jax.random.bits(rng, (2,), jnp.uint32)

    def words(x: jax.Array) -> jax.Array:
        x = x + first
        x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
        x = (x ^ (x >> 11) ^ second) * jnp.uint32(0xAC4C1B51)
        x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
        return x ^ (x >> 14)

    def in_pairs() -> jax.Array:
        size = math.prod(shape)
        pairs = words(lax.iota(jnp.uint32, (size + 1) // 2))
        halves = lax.bitcast_convert_type(pairs, jnp.uint16)
        return halves.reshape(-1)[:size].reshape(shape)

    def one_by_one() -> jax.Array:
        position = jnp.zeros(shape, jnp.uint32)
        for axis, size in enumerate(shape):
            along = lax.broadcasted_iota(jnp.uint32, shape, axis)
            position = position * jnp.uint32(size % 2**32) + along
        return (words(position // 2) >> (position % 2 * 16)).astype(jnp.uint16)

    return lax.platform_dependent(cpu=in_pairs, default=one_by_one)


def split_rng(rng: jax.Array | None, num: int) -> list[jax.Array | None]:
    """`num` keys, or as many None."""
    return [None] * num if rng is None else list(jax.random.split(rng, num))


def dropout(x: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Zeroes each number with probability `rate` in [0, 1) and scales the rest.

    With Threefry's 32 bits a number, as jax draws them, a train step takes 1.1 to 1.3
    times as long on a CPU. Here are 16: the rate is rounded to a multiple of 2⁻¹⁶, and
    the scale fits the rounded one. rng=None means no dropout.
    """
    dropped = min(round(rate * 2**16), 2**16 - 1)  # of all, none is left to scale
    if rng is None or dropped == 0:
        return x
    keep = random_halves(rng, x.shape) >= dropped
    return jnp.where(keep, x / (1 - dropped / 2**16), 0).astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """½ x (1 + erf(x / √2)), computed in at least float32; in x's dtype.

    jax's own takes erfc, whose gradient keeps more arrays of the step in memory.
    """
    wide = x.astype(at_least_float32(x.dtype))
    return (0.5 * wide * (1 + lax.erf(wide * 0.5**0.5))).astype(x.dtype)


@jax.custom_vjp
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """x [..., L, D] times kernel [D, E], plus bias [E]; in x's dtype.

    The gradients of kernel and bias are summed in their own dtype. That of a NARROW
    kernel is the sum of a product for each sequence: for one product of all rows XLA
    first materialises them transposed, recomputing what they come from, and a train
    step takes a tenth longer (measured on a CPU, estimated for a GPU). For
    a wide kernel the products of all sequences would take more memory than the rows.
    """
    bias = bias.astype(x.dtype)
    return x @ kernel.astype(x.dtype) + jnp.expand_dims(bias, range(x.ndim - 1))


def _dense_forward(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> Any:
    return dense(x, kernel, bias), (x, kernel)


def _dense_backward(residuals: Any, cotangent: jax.Array) -> Any:
    x, kernel = residuals
    cotangent = lax.optimization_barrier(cotangent)  # materialised once, narrow
    of_x = cotangent @ kernel.T.astype(x.dtype)
    of_bias = cotangent.sum(range(cotangent.ndim - 1), dtype=kernel.dtype)
    by_sequence = "...de" if kernel.size <= NARROW else "de"
    of_kernel = einsum(f"...ld,...le->{by_sequence}", x, cotangent)
    return of_x, of_kernel.sum(range(of_kernel.ndim - 2), dtype=kernel.dtype), of_bias


dense.defvjp(_dense_forward, _dense_backward)
