"""The floating-point operations of a traced program's matrix products.

The compiler's own count takes a loop for one of its turns, and sees nothing in calls
of libraries.
"""

import math
from typing import Any

import jax
from jax.extend import core


def product_flops(jaxpr: core.Jaxpr) -> float | None:
    """Two for each multiplication in a dot product; None where the data decide.

    A scan counts as often as it turns, a while loop, whose turns are data, once. None
    too for cuDNN's attention; decompositions (`pinv="exact"`) are not counted.
    """
    count = _count(jaxpr)
    return None if math.isnan(count) else count


def _count(jaxpr: core.Jaxpr) -> float:
    """`product_flops`, NaN for None."""
    total = 0.0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        # The bodies of a loop, the branches of a condition, what a call calls.
        inner = [
            _count(getattr(x, "jaxpr", x))
            for x in jax.tree.leaves([*params.values()], is_leaf=_is_jaxpr)
            if _is_jaxpr(x)
        ]
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            left: Any = equation.invars[0].aval
            out: Any = equation.outvars[0].aval
            sums = math.prod(left.shape[i] for i in contracted)
            total += 2.0 * math.prod(out.shape) * sums
        elif name.startswith("dot_product_attention"):
            return math.nan
        elif name == "cond":
            total += inner[0] if len(set(inner)) == 1 else math.nan
        else:
            total += sum(inner) * params.get("length", 1)
    return total


def _is_jaxpr(x: Any) -> bool:
    return isinstance(x, core.Jaxpr | core.ClosedJaxpr)
