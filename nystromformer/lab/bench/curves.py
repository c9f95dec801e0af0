"""How time and memory grow with the length: exponents, and the figure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.bench.programs import PASSES
from nystromformer.lab.bench.variants import EVERY
from nystromformer.lab.figures import new_figure

FIT_FROM = 2048  # below it, what does not depend on the length shows
MARKERS = "os^Dv"


def points(
    rows: Sequence[Mapping[str, Any]], what: str, quantity: str
) -> dict[str, dict[int, float]]:
    """attention -> length -> "seconds" or "bytes", where there is such a number."""
    curves: dict[str, dict[int, float]] = {}
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
    for i, which_pass in enumerate(PASSES):
        seconds = points(rows, which_pass, "seconds")
        megabytes = {
            label: {n: x / 2**20 for n, x in curve.items()}
            for label, curve in points(rows, which_pass, "bytes").items()
        }
        time_axes, memory_axes = figure.axes[2 * i : 2 * i + 2]
        _draw(time_axes, {k: _scaled(v, 1e3) for k, v in seconds.items()})
        time_axes.set(title=f"{which_pass}: time", ylabel="ms")
        _draw(memory_axes, megabytes)
        memory_axes.set(title=f"{which_pass}: memory, compiled", ylabel="MiB")
    return figure


def _scaled(curve: Mapping[int, float], factor: float) -> dict[int, float]:
    return {n: factor * value for n, value in curve.items()}


def _draw(axes: Axes, curves: Mapping[str, Mapping[int, float]]) -> None:
    families = list(dict.fromkeys(label.partition("-")[0] for label in EVERY))
    seen: dict[str, int] = {}
    lengths: set[int] = set()
    for label, curve in curves.items():
        if not curve:
            continue
        prefix, _, rest = label.partition("-")
        peer = prefix in ("hf", "torch")
        family = (rest if peer else label).partition("-")[0]
        nth = seen[family] = seen.get(family, -1) + 1
        power = exponent(curve)
        axes.plot(
            *([*curve], [*curve.values()]),
            color=f"C{families.index(family)}",
            linestyle="--" if peer else "-",
            marker=MARKERS[nth % len(MARKERS)],
            markersize=4,
            label=label if power is None else f"{label}  n^{power:.2f}",
        )
        lengths |= curve.keys()
    ticks = sorted(lengths)
    axes.set(xscale="log", yscale="log", xlabel="length")
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks], rotation=30)
    axes.minorticks_off()
    if lengths:
        axes.legend(
            fontsize="x-small",
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            frameon=False,
        )
