"""What jax has too, and why ours is another: sums, dropout, the dense product."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

LONG = 4096  # terms: a sum that is not longer loses next to nothing
PART = 512  # terms that are added one by one of a longer sum


def at_least_float32(dtype: jax.typing.DTypeLike) -> jnp.dtype:
    """The dtype of statistics and accumulators: float32, or float64 for float64."""
    return jnp.promote_types(dtype, jnp.float32)


def zeroed(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """x with zeros where the mask of its first axes is False; None = x as it is.

    A product with the mask would keep NaN.
    """
    if mask is None:
        return x
    return jnp.where(jnp.expand_dims(mask, range(mask.ndim, x.ndim)), x, 0)


def matmul_in_parts(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    """A B for A [T, S] and B [S, H], a sum of such products over parts of a long S.

    For one product a CPU adds the terms one by one, which in float32 loses digits. An
    S without a divisor that makes parts of PART / 4 to PART terms stays whole.

    Args:
      a, b: the factors.
      **options: as for `jnp.matmul`.
    """
    length = b.shape[0]
    fewest = -(-length // PART) if length > LONG else 1
    parts = next((n for n in range(fewest, 4 * fewest) if length % n == 0), 1)
    if parts == 1:
        return jnp.matmul(a, b, **options)
    a, b = a.reshape(-1, parts, length // parts), b.reshape(parts, length // parts, -1)
    return jnp.einsum("tps,psh->pth", a, b, **options).sum(0)


def random_words(rng: jax.Array, size: int) -> jax.Array:
    """uint32 [size]: a hash of each position and of two random words of the key.

    The hash is triple32 of Wellons' hash-prospector, far less work than Threefry.
    """
    first, second = jax.random.bits(rng, (2,), jnp.uint32)
    x = jax.lax.iota(jnp.uint32, size) + first
    x = (x ^ (x >> 17)) * jnp.uint32(0xED5AD4BB)
    x = (x ^ (x >> 11) ^ second) * jnp.uint32(0xAC4C1B51)
    x = (x ^ (x >> 15)) * jnp.uint32(0x31848BAB)
    return x ^ (x >> 14)


def dropout(
    x: jax.Array,
    rate: float,
    rng: jax.Array | None,
    broadcast_dims: Sequence[int] = (),
) -> jax.Array:
    """Zeroes each number with probability `rate` and scales the rest; 16 bits a number.

    With Threefry's 32 bits a number, as jax draws them, a train step takes 1.1 to 1.3
    times as long on a CPU. The rate is rounded to a multiple of 2⁻¹⁶, and the scale
    fits the rounded one. Both halves of every random word are used.

    Args:
      x: any shape.
      rate: in [0, 1).
      rng: a random key; None = no dropout.
      broadcast_dims: axes along which all share one draw.

    Returns:
      As x, in its dtype.
    """
    dropped = round(rate * 2**16)
    if rng is None or dropped == 0:
        return x
    shape = [1 if axis in broadcast_dims else n for axis, n in enumerate(x.shape)]
    size = math.prod(shape)
    words = random_words(rng, (size + 1) // 2)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)
    keep = halves[:size].reshape(shape) >= dropped
    return jnp.where(keep, x / (1 - dropped / 2**16), 0).astype(x.dtype)


def gelu(x: jax.Array) -> jax.Array:
    """½ x (1 + erf(x / √2)), computed in at least float32; in x's dtype.

    jax's own takes erfc, which keeps the digits of values below −3, all smaller than
    0.005, and has the gradient hold more arrays: 4 of a train step's 86.
    """
    wide = x.astype(at_least_float32(x.dtype))
    return (0.5 * wide * (1 + jax.lax.erf(wide * 0.5**0.5))).astype(x.dtype)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [..., L, D] times kernel [D, E]."""
    return x @ kernel


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    return _product(x, kernel), (x, kernel)


def _backward(residuals: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals

    def by_sequence(x: jax.Array, cotangent: jax.Array) -> jax.Array:
        return (x.mT @ cotangent).sum(range(x.ndim - 2))

    def at_once(x: jax.Array, cotangent: jax.Array) -> jax.Array:
        rows = tuple(range(x.ndim - 1))
        return jnp.tensordot(x, cotangent, axes=(rows, rows))

    of_kernel = jax.lax.platform_dependent(
        x, cotangent, cpu=by_sequence, default=at_once
    )
    return cotangent @ kernel.T, of_kernel


_product.defvjp(_forward, _backward)


def dense_dot_general(
    x: jax.Array,
    kernel: jax.Array,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    **options: Any,
) -> jax.Array:
    """For `nnx.Linear(dot_general=…)`: x [..., L, D] times kernel [D, E].

    On a CPU the gradient of the kernel is the sum of a product for each sequence. For
    one product of all rows XLA first writes them down transposed, with whatever they
    come from computed once more: a train step takes a tenth longer (measured at 8 ×
    2048 and 32 × 512 tokens).

    Raises:
      ValueError: other dimensions, or an option that is not None.
    """
    numbers = ((x.ndim - 1,), (0,)), ((), ())
    if dimension_numbers != numbers or any(v is not None for v in options.values()):
        raise ValueError(
            f"no options and dimension numbers {numbers} are all that this product "
            f"knows, got {options} and {dimension_numbers}"
        )
    return _product(x, kernel)
