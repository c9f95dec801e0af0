"""The figures of a report: scores by landmarks, and learning curves."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.experiments.plotting import HEIGHT, line_style, new_figure
from nystromformer.experiments.report.runs import Frame, scale
from nystromformer.experiments.report.tables import EXACT, heading

LEGEND_LINE = 0.22  # inches
NO_CURVES = {"step", "split", "loss", "examples", "examples_per_second"}


def figures(runs: Frame) -> Iterator[tuple[str, Figure]]:
    """Name and figure, of what one task has data of."""
    for metric, of in runs[runs["finished"]].groupby("metric", sort=False):
        if figure := by_landmarks(of):
            yield f"landmarks_{metric}", figure
    rows = [row for rows in runs["curves"] for row in rows]
    validated = {name for row in rows if row["split"] == "validation" for name in row}
    for metric in sorted(validated - NO_CURVES):
        yield f"curves_validation_{metric}", curves(runs, "validation", metric)
    if rows:
        yield "curves_train_loss", curves(runs, "train", "loss")


def by_landmarks(runs: Frame) -> Figure | None:
    """A line for each setting with several numbers of landmarks; exact attention flat.

    Bars and bands are the standard deviation over several seeds; of one seed, for
    rates, the binomial one over the test examples.
    """
    counts = [run.get("attention.num_landmarks", 0) for run in runs["settings"]]
    words = runs["label"].str.replace(r", [\d,]+ landmarks", "", regex=True)
    figure, lines = new_figure(), runs.assign(count=counts).groupby(words, sort=False)
    axes = figure.axes[0]
    for index, (name, of) in enumerate(lines):
        points = of.groupby("count")["score"].agg(["mean", "std"])
        bars = points["std"].fillna(of.groupby("count")["score_sd"].first())
        style = {**line_style(index), "label": name}
        if of["attention"].iloc[0] == EXACT:
            [mean], [bar] = points["mean"], bars
            axes.axhline(mean, **style)
            axes.axhspan(mean - bar, mean + bar, color=style["color"], alpha=0.1)
        elif len(points) > 1:
            style |= {"marker": "o", "capsize": 3}
            axes.errorbar(points.index, points["mean"], bars, **style)
    if not axes.containers:
        return None
    ticks = sorted({x for bars in axes.containers for x in bars[0].get_xdata()})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(x) for x in ticks])
    axes.minorticks_off()
    title = heading("test", runs["metric"].iloc[0])
    return _finish(figure, runs, "landmarks", title)


def curves(runs: Frame, split: str, metric: str) -> Figure:
    """Seeds as thin lines; their mean, where all have a value, as a thick one."""
    figure = new_figure()
    axes = figure.axes[0]
    for index, (name, of) in enumerate(runs.groupby("label", sort=False)):
        seeds = [
            pd.Series({row["step"]: scale(metric) * row[metric] for row in rows})
            for run in of["curves"]
            if (rows := [x for x in run if x["split"] == split and metric in x])
        ]
        for seed in seeds:
            axes.plot(seed, **line_style(index), linewidth=0.6, alpha=0.5)
        if seeds:
            mean = pd.concat(seeds, axis=1, join="inner").sort_index().mean(axis=1)
            axes.plot(mean, **line_style(index), linewidth=2, label=name)
    return _finish(figure, runs, "step", heading(split, metric))


def _finish(figure: Figure, runs: Frame, xlabel: str, ylabel: str) -> Figure:
    """Titles, and a legend below the panel, which keeps its height."""
    axes = figure.axes[0]
    axes.set(xlabel=xlabel, ylabel=ylabel, title=runs["task"].iloc[0])
    handles, labels = axes.get_legend_handles_labels()
    figure.set_figheight(HEIGHT + LEGEND_LINE * len(labels))
    figure.legend(handles, labels, loc="outside lower left", frameon=False)
    return figure
