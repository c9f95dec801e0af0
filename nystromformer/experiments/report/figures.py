"""The figures of a report: scores by landmarks, and learning curves."""

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from nystromformer.experiments.plotting import HEIGHT, new_figure
from nystromformer.experiments.report.runs import LANDMARKS, Frame, label, scale
from nystromformer.experiments.report.tables import EXACT, heading

STROKES = ("-", "--", ":", "-.")
LEGEND_LINE = 0.22  # inches
NO_CURVES = {"step", "split", "loss", "examples", "examples_per_second"}


def figures(runs: Frame) -> dict[str, Figure]:
    """All figures of one task that have data, by name."""
    drawn = {
        f"landmarks_{metric}": by_landmarks(of)
        for metric, of in runs[runs["finished"]].groupby("metric", sort=False)
    }
    rows = [row for rows in runs["curves"] for row in rows]
    validated = {name for row in rows if row["split"] == "validation" for name in row}
    for metric in sorted(validated - NO_CURVES):
        drawn[f"curves_validation_{metric}"] = curves(runs, "validation", metric)
    drawn["curves_train_loss"] = curves(runs, "train", "loss")
    return {name: figure for name, figure in drawn.items() if figure}


def by_landmarks(runs: Frame) -> Figure | None:
    """A line for each setting with several numbers of landmarks; exact attention flat.

    Bars are the standard deviation over several seeds; of one seed, for rates, the
    binomial one over the test examples.
    """
    figure = new_figure()
    axes, lines, flat = figure.axes[0], {}, {}
    for name, of in runs.groupby("label", sort=False):
        first, sd = of.iloc[0], of["score"].std()
        point = of["score"].mean(), first["score_sd"] if len(of) == 1 else sd
        if first["attention"] == EXACT:
            flat[name] = point
        elif LANDMARKS in first["named"]:
            words = label(first["attention"], first["named"], LANDMARKS)
            lines.setdefault(words, []).append((first["named"][LANDMARKS], *point))
    lines = {name: line for name, line in lines.items() if len(line) > 1}
    if not lines:
        return None
    for index, (name, line) in enumerate(lines.items()):
        counts, means, bars = zip(*sorted(line), strict=True)
        style = {**_style(index), "marker": "o", "capsize": 3, "label": name}
        axes.errorbar(counts, means, bars, **style)
    for index, (name, (mean, bar)) in enumerate(flat.items()):
        stroke = STROKES[1 + index % 3]
        axes.axhline(mean, color="black", linestyle=stroke, label=name)
        axes.axhspan(mean - bar, mean + bar, color="black", alpha=0.08, linewidth=0)
    counts = sorted({count for line in lines.values() for count, *_ in line})
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.minorticks_off()
    title = heading("test", runs["metric"].iloc[0])
    return _finish(figure, runs, "landmarks", title)


def curves(runs: Frame, split: str, metric: str) -> Figure | None:
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
            axes.plot(seed.index, seed, **_style(index), linewidth=0.6, alpha=0.5)
        if seeds:
            mean = pd.concat(seeds, axis=1, join="inner").sort_index().mean(axis=1)
            style = {**_style(index), "linewidth": 2, "label": name}
            axes.plot(mean.index, mean, **style, marker="." if len(mean) < 2 else None)
    return _finish(figure, runs, "step", heading(split, metric)) if axes.lines else None


def _style(index: int) -> dict[str, Any]:
    """Ten colours, then the same with another stroke."""
    return {"color": f"C{index % 10}", "linestyle": STROKES[index // 10 % 4]}


def _finish(figure: Figure, runs: Frame, xlabel: str, ylabel: str) -> Figure:
    """Titles, and a legend below the panel, which keeps its height."""
    axes = figure.axes[0]
    axes.set(xlabel=xlabel, ylabel=ylabel, title=runs["task"].iloc[0])
    handles, labels = axes.get_legend_handles_labels()
    figure.set_figheight(HEIGHT + LEGEND_LINE * len(labels))
    figure.legend(handles, labels, loc="outside lower left", frameon=False)
    return figure
