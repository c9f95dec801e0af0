"""The figures of a report: learning curves, and what the number of landmarks buys."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pandas as pd
from matplotlib import color_sequences
from matplotlib.figure import Figure

from nystromformer.lab.figures import HEIGHT, new_figure
from nystromformer.lab.report.frame import NUM_LANDMARKS, Frame, label, points, values
from nystromformer.lab.report.runs import is_finite
from nystromformer.lab.report.scores import (
    by_device,
    heading,
    mean_and_sd,
    mebibytes,
    scale,
    scores,
)

COLORS = color_sequences["tab10"]
LINES = ("-", "--", ":", "-.")
LEGEND_LINE, LEGEND_LETTERS = 0.22, 36  # inches a line; letters in half the width
EXACT = "softmax"


class Quantity(NamedTuple):
    """One cost of a point against its number of landmarks."""

    name: str
    title: str
    values: Callable[[Frame], list[float]]


COSTS = (
    Quantity(
        "throughput",
        "training, examples/s",
        lambda point: values(point, "examples_per_second"),
    ),
    Quantity(
        "compiled_memory",
        "memory of the compiled step, MiB",
        lambda point: mebibytes(point, "compiled_bytes"),
    ),
    Quantity(
        "peak_memory",
        "peak memory of the device, MiB",
        lambda point: mebibytes(point, "peak_bytes"),
    ),
)


def figures(frame: Frame) -> dict[str, Figure]:
    """All figures of one task that have something to show, by name."""
    drawn: dict[str, Figure | None] = {}
    for metric in dict.fromkeys(frame["metric"]):
        of = frame[frame["metric"] == metric]
        quantity = Quantity(metric, heading("test", metric), scores)
        drawn[f"landmarks_{metric}"] = landmarks_figure(of, quantity, {"": of})
    for quantity in COSTS:
        drawn[f"landmarks_{quantity.name}"] = landmarks_figure(
            frame, quantity, by_device(frame)
        )
    for split, metric in curves_of(frame):
        drawn[f"curves_{split}_{metric}"] = curves_figure(frame, split, metric)
    return {name: figure for name, figure in drawn.items() if figure}


def curves_of(frame: Frame) -> list[tuple[str, str]]:
    """The loss of training, and each metric of validation beside the loss."""
    found = {
        name
        for run in frame["run"]
        for row in run.metrics
        for name, value in row.items()
        if row["split"] == "validation" and is_finite(value)
    }
    metrics = sorted(found - {"step", "loss", "examples", "examples_per_second"})
    return [*(("validation", metric) for metric in metrics), ("train", "loss")]


def _style(index: int) -> dict[str, Any]:
    """A colour of its own for ten lines, then another stroke."""
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": LINES[index // len(COLORS) % len(LINES)],
    }


def _finish(figure: Figure) -> Figure:
    """A legend below the panel, which keeps its height."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    plain = [text.replace("$", r"\$") for text in labels]  # no mathematics
    columns = 2 if max(map(len, labels)) <= LEGEND_LETTERS else 1
    figure.set_figheight(HEIGHT + LEGEND_LINE * -(-len(labels) // columns))
    place = {"loc": "outside lower left", "ncols": columns, "frameon": False}
    figure.legend(handles, plain, **place)
    return figure


def curves_figure(frame: Frame, split: str, metric: str) -> Figure | None:
    """Seeds as thin lines, their mean, where all have a value, as a thick one."""
    figure = new_figure()
    axes = figure.axes[0]
    for index, point in enumerate(points(frame)):
        curves = [run.curve(split, metric) for run in point["run"]]
        seeds = [pd.Series(curve) * scale(metric) for curve in curves if curve]
        if not seeds:
            continue
        style = _style(index)
        for seed in seeds:
            axes.plot(seed.index, seed, **style, linewidth=0.6, alpha=0.5)
        mean = pd.concat(seeds, axis=1, join="inner").sort_index().mean(axis=1)
        style |= {"linewidth": 2, "marker": "o" if len(mean) == 1 else None}
        axes.plot(mean.index, mean, **style, label=point["label"].iloc[0])
    if not axes.has_data():
        return None
    nats = metric == "loss" and set(frame["metric"]) == {"accuracy"}  # cross-entropy
    title = f"{frame['task'].iloc[0]}: {split} {metric.replace('_', ' ')}"
    axes.set(
        xlabel="step", ylabel=heading(split, metric) + ", nats" * nats, title=title
    )
    return _finish(figure)


def landmarks_figure(
    frame: Frame, quantity: Quantity, apart: dict[str, Frame]
) -> Figure | None:
    """One line for each setting with several numbers of landmarks, exact attention
    as horizontal lines; error bars are a standard deviation over seeds."""
    lines: dict[str, dict[int, list[float]]] = {}
    exact: dict[str, list[float]] = {}
    apart = {name: of for name, of in apart.items() if quantity.values(of)}
    for name, of in apart.items():
        where = f", {name}" if len(apart) > 1 else ""
        for point in points(of):
            first, found = point.iloc[0], quantity.values(point)
            if found and first["attention"] == EXACT:
                exact[first["label"] + where] = found
            elif found and NUM_LANDMARKS in first["named"]:
                words = label(first["attention"], first["named"], NUM_LANDMARKS)
                count = first[NUM_LANDMARKS]
                lines.setdefault(words + where, {})[count] = found
    lines = {words: line for words, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for index, (words, line) in enumerate(lines.items()):
        counts = sorted(line)
        means, sds = zip(*(mean_and_sd(line[count]) for count in counts), strict=True)
        bars = [sd or 0 for sd in sds]
        style = {**_style(index), "marker": "o", "capsize": 3, "label": words}
        axes.errorbar(counts, means, bars, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
    for index, (words, found) in enumerate(exact.items()):
        mean, sd = mean_and_sd(found)
        assert mean is not None
        stroke = LINES[(index + 1) % len(LINES)]
        axes.axhline(mean, color="black", linestyle=stroke, label=words)
        if sd is not None:
            axes.axhspan(mean - sd, mean + sd, color="black", alpha=0.08, linewidth=0)
    title = f"{frame['task'].iloc[0]}: {quantity.title.split(',')[0]} by landmarks"
    axes.set(xlabel="landmarks", ylabel=quantity.title, title=title)
    return _finish(figure)
