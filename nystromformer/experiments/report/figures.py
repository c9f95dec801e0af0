"""The figures of a report: scores by landmarks, and learning curves."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.experiments.metric_names import is_rate
from nystromformer.experiments.plotting import HEIGHT, line_style, new_figure
from nystromformer.experiments.report.runs import Frame, heading, scale
from nystromformer.experiments.report.tables import EXACT

LEGEND_LINE = 0.22  # inches


def figures(runs: Frame) -> Iterator[tuple[str, Figure]]:
    """Name and figure, of what one task has data of."""
    for metric, of in runs[runs["finished"]].groupby("metric", sort=False):
        if figure := by_landmarks(of):
            yield f"landmarks_{metric}", figure
    points = pd.DataFrame(
        {"task": run.task, "label": run.label, "seed": run.seed, **row}
        for run in runs.drop_duplicates("run").itertuples()
        for row in run.curves
    )
    rates = {name for name in points if is_rate(name)}
    for metric in sorted(rates | {*runs["metric"]} & {*points}):
        yield f"curves_validation_{metric}", curves(points, "validation", metric)
    if len(points):
        yield "curves_train_loss", curves(points, "train", "loss")


def by_landmarks(runs: Frame) -> Figure | None:
    """A line for each setting with several numbers of landmarks; exact attention flat.

    Bars are the standard deviation over several seeds; of one seed, for accuracies, the
    binomial one over the test examples.
    """
    counts = [run.get("attention.num_landmarks", 0) for run in runs["settings"]]
    words = runs["label"].str.replace(r", \d+ landmarks", "", regex=True)
    figure, lines = new_figure(), runs.assign(count=counts).groupby(words, sort=False)
    axes = figure.axes[0]
    for index, (name, of) in enumerate(lines):
        groups = of.groupby("count")
        mean, sd = groups["score"].mean(), groups["score"].std()
        style = {**line_style(index), "label": name}
        if of["attention"].iloc[0] == EXACT:
            axes.axhline(mean.item(), **style)
        elif len(mean) > 1:
            bars = sd.fillna(groups["score_sd"].first())
            axes.errorbar(mean.index, mean, bars, marker="o", capsize=3, **style)
    if not axes.containers:
        return None
    axes.set_xscale("log", base=2)
    measured = sorted({x for bars in axes.containers for x in bars[0].get_xdata()})
    axes.set_xticks(measured, [f"{x:g}" for x in measured])
    return _finish(figure, runs, "landmarks", heading("test", runs["metric"].iloc[0]))


def curves(points: Frame, split: str, metric: str) -> Figure:
    """Seeds as thin lines; their mean, where all have a value, as a thick one."""
    figure = new_figure()
    axes = figure.axes[0]
    known = points[(points["split"] == split) & points[metric].notna()]
    for index, (name, of) in enumerate(known.groupby("label", sort=False)):
        seeds = scale(metric) * of.pivot(index="step", columns="seed", values=metric)
        style = line_style(index)
        for seed in seeds:
            values = seeds[seed].dropna()
            thin = {"linewidth": 0.6, "alpha": 0.5, "marker": _marker(values)}
            axes.plot(values, **style, **thin)
        mean = seeds.dropna().mean(axis=1)
        axes.plot(mean, **style, linewidth=2, marker=_marker(mean), label=name)
    return _finish(figure, points, "step", heading(split, metric))


def _marker(values: Frame) -> str:
    """A point for a single value, which a line would not show."""
    return "o" if len(values) == 1 else ""


def _finish(figure: Figure, runs: Frame, xlabel: str, ylabel: str) -> Figure:
    """Titles, and a legend below the panel, which keeps its height."""
    axes = figure.axes[0]
    axes.set(xlabel=xlabel, ylabel=ylabel, title=runs["task"].iloc[0])
    handles, labels = axes.get_legend_handles_labels()
    figure.set_figheight(HEIGHT + LEGEND_LINE * len(labels))
    figure.legend(handles, labels, loc="outside lower left", frameon=False)
    return figure
