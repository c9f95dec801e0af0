"""The figures of a report: scores by landmarks and by cost, and learning curves."""

import re
from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.experiments.metric_names import is_rate
from nystromformer.experiments.plotting import (
    add_legend,
    line_style,
    new_figure,
)
from nystromformer.experiments.report.costs import COST_AXES, draw_by_cost
from nystromformer.experiments.report.names import EXACT_MARK
from nystromformer.experiments.report.runs import Frame, heading, scale
from nystromformer.experiments.report.tables import EXACT


def draw_figures(runs: Frame) -> Iterator[tuple[str, Figure]]:
    """Draws what the runs of one task have data for, each figure with its name."""
    for metric, group in runs[runs["finished"]].groupby("metric", sort=False):
        figure = draw_by_landmarks(group)
        if figure is not None:
            yield f"landmarks_{metric}", figure
        for name, axis in COST_AXES.items():
            figure = draw_by_cost(group, axis)
            if figure is not None:
                yield f"{name}_{metric}", figure

    points = _curve_points(runs)
    if points.empty:
        return
    shown_metrics = {name for name in points if is_rate(name)}
    shown_metrics |= set(runs["metric"]) & set(points)
    for metric in sorted(shown_metrics):
        yield f"curves_validation_{metric}", draw_curves(points, "validation", metric)
    yield "curves_train_loss", draw_curves(points, "train", "loss")


def _curve_points(runs: Frame) -> Frame:
    """The lines of metrics.jsonl of all runs, with the run's task, label and seed."""
    points = []
    for run in runs.drop_duplicates("run").itertuples():
        for row in run.curves:
            points.append(
                {"task": run.task, "label": run.label, "seed": run.seed, **row}
            )
    return pd.DataFrame(points)


def draw_by_landmarks(runs: Frame) -> Figure | None:
    """Draws a line for each setting with several numbers of landmarks.

    Exact attention is a flat line. Bars are the standard deviation over several seeds;
    of one seed, for accuracies, the binomial one over the test examples.

    Returns:
      The figure; None if no setting has several numbers.
    """
    counts = [run.get("attention.num_landmarks", 0) for run in runs["settings"]]
    # What is left of a label without its number of landmarks names a line.
    number = rf", \d+ landmarks(?:{re.escape(EXACT_MARK)})?"
    names = runs["label"].str.replace(number, "", regex=True)
    figure = new_figure()
    axes = figure.axes[0]
    lines = runs.assign(count=counts).groupby(names, sort=False)
    for index, (name, group) in enumerate(lines):
        by_count = group.groupby("count")
        means = by_count["score"].mean()
        style = {**line_style(index), "label": name}
        if group["attention"].iloc[0] == EXACT:
            axes.axhline(means.item(), **style)
        elif len(means) > 1:
            deviations = by_count["score"].std()
            bars = deviations.fillna(by_count["score_sd"].first())
            axes.errorbar(means.index, means, bars, marker="o", capsize=3, **style)
    if not axes.containers:
        return None

    axes.set_xscale("log", base=2)
    measured = set()
    for error_bars in axes.containers:
        measured.update(error_bars[0].get_xdata())
    ticks = sorted(measured)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    return _finish(figure, runs, "landmarks", heading("test", runs["metric"].iloc[0]))


def draw_curves(points: Frame, split: str, metric: str) -> Figure:
    """Draws seeds as thin lines and, where all have a value, their mean as a thick one.

    Args:
      points: the lines of metrics.jsonl, with `task`, `label` and `seed`.
      split: "train" or "validation".
      metric: a column of the points.
    """
    figure = new_figure()
    axes = figure.axes[0]
    drawn_points = points[(points["split"] == split) & points[metric].notna()]
    for index, (name, group) in enumerate(drawn_points.groupby("label", sort=False)):
        by_seed = group.pivot(index="step", columns="seed", values=metric)
        by_seed = scale(metric) * by_seed
        style = line_style(index)
        for seed in by_seed:
            values = by_seed[seed].dropna()
            axes.plot(values, **style, linewidth=0.6, alpha=0.5, marker=_marker(values))
        mean = by_seed.dropna().mean(axis=1)
        axes.plot(mean, **style, linewidth=2, marker=_marker(mean), label=name)
    return _finish(figure, points, "step", heading(split, metric))


def _marker(values: Frame) -> str:
    """A point for a single value, which a line would not show."""
    return "o" if len(values) == 1 else ""


def _finish(figure: Figure, runs: Frame, xlabel: str, ylabel: str) -> Figure:
    """Adds titles and a legend."""
    axes = figure.axes[0]
    axes.set(xlabel=xlabel, ylabel=ylabel, title=runs["task"].iloc[0])
    add_legend(figure)
    return figure
