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
            for inner in jax.tree.leaves(
                list(equation.params.values()), is_leaf=is_jaxpr
            ):
                if is_jaxpr(inner):
                    yield from walk(getattr(inner, "jaxpr", inner))

    return walk(jax.make_jaxpr(function)(*args).jaxpr)


def quadratic_shapes(
    length: int, other: int, function: Callable[..., Any], *args: Any
) -> set[tuple[int, ...]]:
    """Shapes of all arrays formed whose size is a multiple of length × other.

    With primes that occur nowhere else this finds [T, S], however it is flattened.
    """
    avals = (v.aval for eqn in equations(function, *args) for v in eqn.outvars)
    shapes = (getattr(aval, "shape", ()) for aval in avals)
    return {s for s in shapes if math.prod(s) and math.prod(s) % (length * other) == 0}
