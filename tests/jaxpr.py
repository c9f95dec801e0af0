"""What a traced function computes: every equation and every shape it forms."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core


def equations(function: Callable[..., Any], *args: Any) -> Iterator[core.JaxprEqn]:
    """All equations of the traced function, those of inner jaxprs too."""

    def is_jaxpr(x: Any) -> bool:
        return isinstance(x, (core.Jaxpr, core.ClosedJaxpr))

    def walk(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
        for equation in jaxpr.eqns:
            yield equation
            params = list(equation.params.values())
            for param in jax.tree.leaves(params, is_leaf=is_jaxpr):
                if is_jaxpr(param):
                    yield from walk(getattr(param, "jaxpr", param))

    return walk(jax.make_jaxpr(function)(*args).jaxpr)


def quadratic_shapes(
    length: int, other: int, function: Callable[..., Any], *args: Any
) -> set[tuple[int, ...]]:
    """Shapes of all arrays formed whose size is a multiple of length × other.

    With primes that occur nowhere else this finds [T, S], however it is flattened.
    """
    quadratic = set()
    for equation in equations(function, *args):
        for variable in equation.outvars:
            shape = getattr(variable.aval, "shape", ())
            size = math.prod(shape)
            if size > 0 and size % (length * other) == 0:
                quadratic.add(shape)
    return quadratic
