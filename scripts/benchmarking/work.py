"""The floating-point operations of a traced program's matrix products.

The compiler's own count takes a loop for one of its turns, and sees nothing in calls
of libraries.
"""

import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core


def product_flops(jaxpr: core.Jaxpr) -> float | None:
    """Two for each multiplication in a dot product; None where the data decide.

    A scan counts as often as it turns, a while loop, whose turns are data, once.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            total += _dot_flops(equation)
            continue
        inner = [product_flops(x) for x in _inner(equation)]
        if None in inner:
            return None
        counts = [count for count in inner if count is not None]
        if equation.primitive.name == "cond":
            if len(set(counts)) > 1:
                return None
            counts = counts[:1]
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += turns * sum(counts)
    return total


def _dot_flops(equation: core.JaxprEqn) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left: Any = equation.invars[0].aval
    out: Any = equation.outvars[0].aval
    return 2.0 * math.prod(out.shape) * math.prod(left.shape[i] for i in contracted)


def _inner(equation: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """The bodies of a loop, the branches of a condition, what a call calls."""
    for value in equation.params.values():
        for x in value if isinstance(value, tuple | list) else (value,):
            if isinstance(x, core.ClosedJaxpr):
                yield x.jaxpr
            elif isinstance(x, core.Jaxpr):
                yield x
