"""How time and memory grow with the length: exponents, and the figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.bench.programs import PASSES
from nystromformer.lab.figures import new_figure

FIT_FROM = 2048  # below it, what does not depend on the length shows
MARKERS = "os^Dv"

Curves = dict[str, dict[int, float]]


def points(rows: Sequence[Mapping[str, Any]], what: str, quantity: str) -> Curves:
    """attention -> length -> "seconds" or "bytes", where there is such a number."""
    curves: Curves = {}
    for row in rows:
        key = row["key"]
        if key["what"] != what:
            continue
        curve = curves.setdefault(key["attention"], {})
        if quantity == "seconds" and row["seconds"]:
            curve[key["length"]] = quartiles(row["seconds"])[1]
        elif quantity == "bytes" and row["cost"]:
            curve[key["length"]] = row["cost"]["peak_bytes"]
    return curves


def exponent(curve: Mapping[int, float]) -> float | None:
    """p of c · lengthᵖ by least squares of logarithms, from length FIT_FROM on.

    None with less than two points there, or a value of 0.
    """
    fitted = {n: value for n, value in curve.items() if n >= FIT_FROM}
    if len(fitted) < 2 or min(fitted.values()) <= 0:
        return None
    logs = np.log([*fitted]), np.log([*fitted.values()])
    return float(np.polyfit(*logs, deg=1)[0])


def draw_curves(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Time and compiled memory against the length, a row of panels for each pass."""
    figure = new_figure(len(PASSES), 2)
    panels = iter(figure.axes)
    for which_pass in PASSES:
        for quantity, title, unit, factor in (
            ("seconds", "time", "ms", 1e3),
            ("bytes", "memory, compiled", "MiB", 2**-20),
        ):
            axes = next(panels)
            axes.set(title=f"{which_pass}: {title}", ylabel=unit)
            _draw(axes, points(rows, which_pass, quantity), factor)
    return figure


def _draw(axes: Axes, curves: Curves, factor: float) -> None:
    """One colour a family of attentions, dashed where it is a peer's."""
    families: dict[str, int] = {}  # how many lines each has
    for label, curve in curves.items():
        prefix, _, rest = label.partition("-")
        peer = prefix in ("hf", "torch")
        family = (rest if peer else label).partition("-")[0]
        families[family] = families.get(family, -1) + 1
        if not curve:
            continue
        power = exponent(curve)
        axes.plot(
            [*curve],
            [factor * value for value in curve.values()],
            color=f"C{[*families].index(family)}",
            linestyle="--" if peer else "-",
            marker=MARKERS[families[family] % len(MARKERS)],
            markersize=4,
            label=label if power is None else f"{label}  n^{power:.2f}",
        )
    ticks = sorted({length for curve in curves.values() for length in curve})
    axes.set(xscale="log", yscale="log", xlabel="length")
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=30)
    axes.minorticks_off()
    if ticks:
        axes.legend(
            fontsize="x-small",
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
        )
