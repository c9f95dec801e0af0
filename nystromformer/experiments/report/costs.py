"""Figures of scores over what they cost, with the best trade-offs."""

from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from nystromformer.experiments.plotting import add_legend, line_style, new_figure
from nystromformer.experiments.report.runs import Frame, heading


class CostAxis(NamedTuple):
    """A cost of a run, as an axis on which runs are compared.

    key: its name in result.json.
    title: the label of the axis.
    unit: what a value of result.json is divided by.
    is_higher_better: True for a speed, False for a memory.
    """

    key: str
    title: str
    unit: float
    is_higher_better: bool


COST_AXES = {
    "speed": CostAxis(
        key="examples_per_second",
        title="training, examples/s",
        unit=1,
        is_higher_better=True,
    ),
    "memory": CostAxis(
        key="compiled_bytes",
        title="memory of a training step, MiB",
        unit=2**20,
        is_higher_better=False,
    ),
}


def draw_by_cost(runs: Frame, cost: CostAxis) -> Figure | None:
    """Draws the score of each setting over what it costs.

    Each setting is a point in the colour of its `group`, and the points of one group
    are joined. The grey line is the frontier: the best score at each cost. There is a
    panel for each set of task options and each device. A bar is the standard deviation
    over seeds, or, for the accuracy of a single seed, the binomial one.

    Args:
      runs: finished runs of one task and metric.
      cost: the horizontal axis.

    Returns:
      The figure; None if no panel has two settings whose cost is known.
    """
    measured_runs = runs[runs[cost.key] > 0]
    panels = {}
    by_panel = measured_runs.groupby(["data", "device"], sort=False)
    for data_and_device, panel in by_panel:
        if panel["label"].nunique() > 1:
            panels[data_and_device] = panel
    if not panels:
        return None

    figure = new_figure(columns=len(panels))
    groups = measured_runs["group"].unique()
    styles = {name: line_style(i) for i, name in enumerate(groups)}
    for axes, ((data, device), panel) in zip(figure.axes, panels.items(), strict=True):
        _draw_panel(axes, panel, cost, styles)
        title_parts = [panel["task"].iloc[0], data, device]
        axes.set_title(", ".join(part for part in title_parts if part))
    add_legend(figure)
    return figure


def _draw_panel(axes: Axes, runs: Frame, cost: CostAxis, styles: dict[str, dict]):
    """Draws the frontier, the points of each group and their names."""
    points = _summarize_points(runs, cost)
    frontier = _find_frontier(points, cost)
    # A point's score can be had at worse costs too, up to the next point: at lower
    # speeds, which lie to its left, and at larger memories, to its right.
    step = "steps-pre" if cost.is_higher_better else "steps-post"
    axes.plot(
        frontier["cost"], frontier["score"], color="0.7", drawstyle=step, zorder=0
    )

    for group, group_points in points.groupby("group", sort=False):
        line = group_points.sort_values("cost")
        setting, names = _split_names(list(line["name"]))
        axes.errorbar(
            line["cost"],
            line["score"],
            line["bar"],
            marker="o",
            capsize=2,
            linewidth=0.7,
            label=f"{group}, by {setting}" if setting else group,
            **styles[group],
        )
        places = zip(line["cost"], line["score"], strict=True)
        for name, place in zip(names, places, strict=True):
            axes.annotate(
                name, place, xytext=(3, 3), textcoords="offset points", fontsize=6
            )

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=cost.title, ylabel=heading("test", runs["metric"].iloc[0]))


def _summarize_points(runs: Frame, cost: CostAxis) -> Frame:
    """A row for each label: its group, mean cost, mean score, bar and name.

    The name is what the row of the score table says beside the name of the group.
    """
    points = []
    for _, seeds in runs.groupby("label", sort=False):
        first_run = seeds.iloc[0]
        deviation = seeds["score"].std()
        group_phrases = first_run["group"].split(", ")
        phrases = [x for x in first_run["row"].split(", ") if x not in group_phrases]
        points.append(
            {
                "group": first_run["group"],
                "cost": seeds[cost.key].mean() / cost.unit,
                "score": seeds["score"].mean(),
                "bar": first_run["score_sd"] if pd.isna(deviation) else deviation,
                "name": ", ".join(phrases),
            }
        )
    return pd.DataFrame(points)


def _split_names(names: list[str]) -> tuple[str, list[str]]:
    """Takes the common word out of the names of a line's points.

    Returns:
      The word and the rest of each name: "landmarks" and ["4", "16"] of "4 landmarks"
      and "16 landmarks". If the names are not of two words with one in common, it is ""
      and the names as they are.
    """
    words = [name.split(" ") for name in names]
    if len(words) > 1 and all(len(pair) == 2 for pair in words):
        for first, second in ((0, 1), (1, 0)):
            shared = {pair[first] for pair in words}
            if len(shared) == 1:
                return shared.pop(), [pair[second] for pair in words]
    return "", names


def _find_frontier(points: Frame, cost: CostAxis) -> Frame:
    """The points whose score no other point of an equal or better cost reaches."""
    best_cost_first = points.sort_values(
        ["cost", "score"], ascending=[not cost.is_higher_better, False]
    )
    best_so_far = best_cost_first["score"].cummax()
    is_best = best_cost_first["score"] > best_so_far.shift(fill_value=float("-inf"))
    return best_cost_first[is_best].sort_values("cost")
