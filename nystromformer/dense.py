"""The product with a weight matrix, and a gradient that suits the device."""

from typing import Any

import jax

Pair = tuple[jax.Array, jax.Array]


def _numbers(x: jax.Array) -> jax.lax.DotDimensionNumbers:
    return ((x.ndim - 1,), (0,)), ((), ())


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x [..., D] times kernel [D, E]."""
    return jax.lax.dot_general(x, kernel, _numbers(x))


def _forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Pair]:
    return _product(x, kernel), (x, kernel)


def _backward(residuals: Pair, cotangent: jax.Array) -> Pair:
    x, kernel = residuals
    *batch, last = range(x.ndim - 1)

    def at_once(x: jax.Array, cotangent: jax.Array) -> jax.Array:
        rows = (*batch, last)
        return jax.lax.dot_general(x, cotangent, ((rows, rows), ((), ())))

    def by_sequence(x: jax.Array, cotangent: jax.Array) -> jax.Array:
        numbers = (((last,), (last,)), (batch, batch))
        return jax.lax.dot_general(x, cotangent, numbers).sum(range(len(batch)))

    of_x = jax.lax.dot_general(cotangent, kernel, (((x.ndim - 1,), (1,)), ((), ())))
    of_kernel = jax.lax.platform_dependent(
        x, cotangent, cpu=by_sequence, default=at_once
    )
    return of_x, of_kernel


_product.defvjp(_forward, _backward)


def dense_dot_general(
    x: jax.Array,
    kernel: jax.Array,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: jax.typing.DTypeLike | None = None,
    out_sharding: Any = None,
) -> jax.Array:
    """For `nnx.Linear(dot_general=…)`: x [..., L, D] times kernel [D, E].

    On a CPU the gradient of the kernel is the sum of a product for each sequence, and
    takes the memory of them all. For one product of all rows XLA first writes them down
    transposed, with whatever they come from computed once more.

    Raises:
      ValueError: other dimensions, or an option that is not None.
    """
    asked = (precision, preferred_element_type, out_sharding)
    if dimension_numbers != _numbers(x) or asked != (None, None, None):
        raise ValueError(
            f"no options and dimension numbers {_numbers(x)} are all that this product "
            f"knows, got {asked} and {dimension_numbers}"
        )
    return _product(x, kernel)
