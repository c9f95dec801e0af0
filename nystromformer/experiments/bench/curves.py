"""The figure: how time and memory grow with the length."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nystromformer.experiments.bench.programs import PASSES
from nystromformer.experiments.bench.summary import (
    Row,
    exponent,
    peak_bytes,
    peer_of,
    points,
    seconds,
)
from nystromformer.experiments.plotting import new_figure

MARKERS = "os^Dv"
COLUMNS = (
    (seconds, "time", "ms", 1e3),
    (peak_bytes, "memory, compiled", "MiB", 2**-20),
)


def draw_curves(rows: Sequence[Row]) -> Figure:
    """Time and compiled memory against the length, a row of panels for each pass."""
    figure = new_figure(len(PASSES), len(COLUMNS))
    panels = iter(figure.axes)
    for which_pass in PASSES:
        chosen = [row for row in rows if row["key"]["what"] == which_pass]
        for value, title, unit, factor in COLUMNS:
            axes = next(panels)
            axes.set(title=f"{which_pass}: {title}", ylabel=unit)
            _draw(axes, points(chosen, value), factor)
    return figure


def _draw(axes: Axes, curves: Mapping[str, Mapping[int, float]], factor: float) -> None:
    """One colour for each family of attentions; peers are dashed."""
    families: dict[str, int] = {}  # how many lines each has
    for label, curve in curves.items():
        peer, ours = peer_of(label)
        family = ours.partition("-")[0]
        families[family] = families.get(family, -1) + 1
        power = exponent(curve)
        if curve:
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
        place = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
        axes.legend(fontsize="x-small", frameon=False, **place)
