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

    A scan counts as often as it turns, a while loop, whose turns are data, once. None
    too for cuDNN's attention; decompositions (`inverse="exact"`) are not counted.
    """
    count = _count(jaxpr)
    return None if math.isnan(count) else count


def _count(jaxpr: core.Jaxpr) -> float:
    """`product_flops`, NaN for None."""
    total = 0.0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [_count(x) for x in _inner(equation)]
        if name == "dot_general":
            total += _dot_flops(equation)
        elif name.startswith("dot_product_attention"):
            return math.nan
        elif name == "cond":
            total += inner[0] if len(set(inner)) == 1 else math.nan
        else:
            total += sum(inner) * equation.params.get("length", 1)
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
