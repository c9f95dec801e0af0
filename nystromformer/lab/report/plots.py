"""The figures of a report: learning curves, and what the number of landmarks buys."""

from collections.abc import Callable
from typing import Any, NamedTuple

from matplotlib import color_sequences
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nystromformer.lab.figures import HEIGHT, new_figure
from nystromformer.lab.report.points import Point, mean_and_sd
from nystromformer.lab.report.settings import NUM_LANDMARKS
from nystromformer.lab.report.tables import accuracies, by_device, mebibytes

COLORS = color_sequences["tab10"]
LINES = ("-", "--", ":", "-.")
LEGEND_LINE, LEGEND_LETTERS = 0.22, 36  # inches a line; letters in half the width
EXACT = "softmax"


class Curve(NamedTuple):
    """One metric against the step."""

    split: str
    metric: str
    title: str
    factor: float = 1.0


class Quantity(NamedTuple):
    """One number of a point against its number of landmarks."""

    name: str
    title: str
    values: Callable[[Point], list[float]]
    costs: bool  # it belongs to a device


CURVES = {
    "validation": Curve("validation", "accuracy", "validation accuracy, %", 100),
    "loss": Curve("train", "loss", "train loss, nats"),
}
QUANTITIES = (
    Quantity("accuracy", "test accuracy, %", accuracies, False),
    Quantity(
        "throughput",
        "training, examples/s",
        lambda point: point.values("examples_per_second"),
        True,
    ),
    Quantity(
        "compiled_memory",
        "memory of the compiled step, MiB",
        lambda point: mebibytes(point, "compiled_bytes"),
        True,
    ),
    Quantity(
        "peak_memory",
        "peak memory of the device, MiB",
        lambda point: mebibytes(point, "peak_bytes"),
        True,
    ),
)


def figures(points: list[Point]) -> dict[str, Figure]:
    """All figures of one task's points that have something to show, by name."""
    drawn = {
        f"landmarks_{quantity.name}": landmarks_figure(points, quantity)
        for quantity in QUANTITIES
    }
    drawn |= {f"curves_{name}": curves_figure(points, CURVES[name]) for name in CURVES}
    return {name: figure for name, figure in drawn.items() if figure}


def _style(index: int) -> dict[str, Any]:
    """A colour of its own for ten lines, then another stroke."""
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": LINES[index // len(COLORS) % len(LINES)],
    }


def _finish(figure: Figure) -> Figure:
    """A legend below the panel, which keeps its height."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    plain = [label.replace("$", r"\$") for label in labels]  # no mathematics
    columns = 2 if max(map(len, labels)) <= LEGEND_LETTERS else 1
    figure.set_figheight(HEIGHT + LEGEND_LINE * -(-len(labels) // columns))
    place = {"loc": "outside lower left", "ncols": columns, "frameon": False}
    figure.legend(handles, plain, **place)
    return figure


def curves_figure(points: list[Point], curve: Curve) -> Figure | None:
    """Seeds as thin lines, their mean, where all have a value, as a thick one."""
    figure = new_figure()
    axes = figure.axes[0]
    for index, point in enumerate(points):
        seeds = [run.curve(curve.split, curve.metric) for run in point.runs]
        if not any(seeds):
            continue
        style = _style(index)
        for seed in seeds:
            values = [curve.factor * value for value in seed.values()]
            axes.plot(list(seed), values, **style, linewidth=0.6, alpha=0.5)
        mean = mean_curve([seed for seed in seeds if seed])
        values = [curve.factor * value for value in mean.values()]
        style |= {"linewidth": 2, "marker": "o" if len(mean) == 1 else None}
        axes.plot(list(mean), values, **style, label=point.label())
    if not axes.has_data():
        return None
    axes.set(xlabel="step", ylabel=curve.title, title=points[0].task)
    return _finish(figure)


def mean_curve(seeds: list[dict[int, float]]) -> dict[int, float]:
    """Step -> mean, at the steps that all seeds have."""
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return {step: sum(seed[step] for seed in seeds) / len(seeds) for step in steps}


def landmarks_figure(points: list[Point], quantity: Quantity) -> Figure | None:
    """One line for each setting with several numbers of landmarks, exact attention
    as horizontal lines; error bars are a standard deviation over seeds."""
    measured = [
        (device, same)
        for point in points
        for device, same in (
            by_device(point) if quantity.costs else {"": point}
        ).items()
        if quantity.values(same)
    ]
    devices = {device for device, _ in measured}
    lines: dict[str, dict[int, list[float]]] = {}
    exact: dict[str, list[float]] = {}
    for device, point in measured:
        where = f", {device}" if len(devices) > 1 else ""
        if point.attention == EXACT:
            exact[point.label() + where] = quantity.values(point)
        elif NUM_LANDMARKS in point.named:
            line = lines.setdefault(point.label(without=NUM_LANDMARKS) + where, {})
            line[point.named[NUM_LANDMARKS]] = quantity.values(point)
    lines = {label: line for label, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for index, (label, line) in enumerate(lines.items()):
        _draw_line(axes, label, line, _style(index))
    for index, (label, values) in enumerate(exact.items()):
        mean, sd = mean_and_sd(values)
        assert mean is not None
        stroke = LINES[(index + 1) % len(LINES)]
        axes.axhline(mean, color="black", linestyle=stroke, label=label)
        if sd is not None:
            axes.axhspan(mean - sd, mean + sd, color="black", alpha=0.08, linewidth=0)
    axes.set(xlabel="landmarks", ylabel=quantity.title, title=points[0].task)
    return _finish(figure)


def _draw_line(
    axes: Axes, label: str, line: dict[int, list[float]], style: dict[str, Any]
) -> None:
    counts = sorted(line)
    spreads = [mean_and_sd(line[count]) for count in counts]
    means = [mean for mean, _ in spreads if mean is not None]
    sds = [sd or 0 for _, sd in spreads]
    axes.errorbar(counts, means, sds, **style, marker="o", capsize=3, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
