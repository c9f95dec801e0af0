"""The figures of a report: learning curves, and scores and costs by landmarks."""

from typing import Any

import pandas as pd
from matplotlib import color_sequences
from matplotlib.figure import Figure

from nystromformer.experiments.figures import HEIGHT, new_figure
from nystromformer.experiments.report.frame import (
    NUM_LANDMARKS,
    Frame,
    label,
    points,
    values,
)
from nystromformer.experiments.report.runs import is_finite, scale
from nystromformer.experiments.report.scores import by_device, heading, mean_and_sd

COLORS = color_sequences["tab10"]
LINES = ("-", "--", ":", "-.")
LEGEND_LINE, LEGEND_LETTERS = 0.22, 36  # inches a line; letters in half the width
EXACT = "softmax"
NO_CURVES = {"step", "loss", "examples", "examples_per_second"}
COSTS = {  # name -> column, title
    "throughput": ("examples_per_second", "training throughput, examples/s"),
    "compiled_memory": ("compiled_bytes", "memory of the compiled step, MiB"),
    "peak_memory": ("peak_bytes", "peak memory of the device, MiB"),
}


def figures(frame: Frame) -> dict[str, Figure]:
    """All figures of one task that have data, by name."""
    drawn: dict[str, Figure | None] = {}
    for metric, of in frame.groupby("metric", sort=False):
        title = heading("test", metric)
        drawn[f"landmarks_{metric}"] = _landmarks_figure({"": of}, "test", title)
    for name, cost in COSTS.items():
        drawn[f"landmarks_{name}"] = _landmarks_figure(by_device(frame), *cost)
    rows = [row for run in frame["run"] for row in run.metrics]
    validated = {
        name
        for row in rows
        for name in row.keys() - NO_CURVES
        if row["split"] == "validation" and is_finite(row[name])
    }
    for metric in sorted(validated):
        drawn[f"curves_validation_{metric}"] = _curves(frame, "validation", metric)
    drawn["curves_train_loss"] = _curves(frame, "train", "loss")
    return {name: figure for name, figure in drawn.items() if figure}


def _style(index: int) -> dict[str, Any]:
    """A separate colour for each of ten lines, then another line style."""
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


def _curves(frame: Frame, split: str, metric: str) -> Figure | None:
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
    ylabel = heading(split, metric) + ", nats" * nats
    axes.set(xlabel="step", ylabel=ylabel, title=title)
    return _finish(figure)


def _landmarks_figure(
    apart: dict[str, Frame], column: str, title: str
) -> Figure | None:
    """One line for each setting with several numbers of landmarks, exact attention
    as horizontal lines; error bars are those of `_mean_and_bar`.

    Args:
      apart: name -> runs that have no mean with the others.
      column: what is drawn, under this title.
    """
    lines: dict[str, dict[int, tuple[float, float]]] = {}
    exact: dict[str, tuple[float, float]] = {}
    apart = {name: of for name, of in apart.items() if values(of, column)}
    for name, point in ((name, x) for name, of in apart.items() for x in points(of)):
        where = f", {name}" if len(apart) > 1 else ""
        first, found = point.iloc[0], _mean_and_bar(point, column)
        if found and first["attention"] == EXACT:
            exact[first["label"] + where] = found
        elif found and NUM_LANDMARKS in first["named"]:
            words = label(first["attention"], first["named"], NUM_LANDMARKS) + where
            lines.setdefault(words, {})[first[NUM_LANDMARKS]] = found
    lines = {words: line for words, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for index, (words, line) in enumerate(lines.items()):
        counts = sorted(line)
        means, bars = zip(*(line[count] for count in counts), strict=True)
        style = {**_style(index), "marker": "o", "capsize": 3, "label": words}
        axes.errorbar(counts, means, bars, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
    for index, (words, (mean, bar)) in enumerate(exact.items(), 1):
        stroke = LINES[index % len(LINES)]
        axes.axhline(mean, color="black", linestyle=stroke, label=words)
        if bar:
            axes.axhspan(mean - bar, mean + bar, color="black", alpha=0.08, linewidth=0)
    task = next(iter(apart.values()))["task"].iloc[0]
    heading = f"{task}: {title.split(',')[0]} by landmarks"
    axes.set(xlabel="landmarks", ylabel=title, title=heading)
    return _finish(figure)


def _mean_and_bar(point: Frame, column: str) -> tuple[float, float] | None:
    """Mean and standard deviation over seeds; of one seed's test rate, that of a mean
    over as many examples as were tested; 0 where neither is known."""
    mean, sd = mean_and_sd(values(point, column))
    if sd is None and column == "test":
        sd = next(iter(values(point, "test_sd")), None)
    return None if mean is None else (mean, sd or 0.0)
