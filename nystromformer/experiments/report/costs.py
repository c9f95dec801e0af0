"""Figures of scores over what they cost, with the best trade-offs."""

import textwrap
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from nystromformer.experiments.metric_names import is_higher_better
from nystromformer.experiments.plotting import add_legend, line_style, new_figure
from nystromformer.experiments.report.names import EXACT_MARK
from nystromformer.experiments.report.runs import Frame, heading

LETTERS_BESIDE_A_POINT = 40


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

    points_of_panel = {
        data_and_device: _summarize_points(panel, cost)
        for data_and_device, panel in panels.items()
    }
    lines = _name_lines(pd.concat(list(points_of_panel.values())))
    metric = runs["metric"].iloc[0]
    figure = new_figure(columns=len(panels))
    for axes, (data_and_device, points) in zip(
        figure.axes, points_of_panel.items(), strict=True
    ):
        _draw_frontier(axes, _find_frontier(points, cost, metric), cost)
        _draw_points(axes, points, cost, lines)
        title_parts = [runs["task"].iloc[0], *data_and_device]
        axes.set_title(", ".join(part for part in title_parts if part))
        axes.set_ylabel(heading("test", metric))
    add_legend(figure, num_columns=len(panels))
    return figure


class Line(NamedTuple):
    """How the points of a group are drawn.

    Attributes:
      label: the group in the legend, such as "nystrom, by landmarks".
      setting: the word that is left out beside its points, such as "landmarks".
      style: the colour and stroke.
    """

    label: str
    setting: str
    style: dict[str, Any]


def _name_lines(points: Frame) -> dict[str, Line]:
    """The line of each group, the same in all panels."""
    lines = {}
    by_group = points.groupby("group", sort=False)
    for index, (group, group_points) in enumerate(by_group):
        setting = _find_setting(list(group_points["name"]))
        label = f"{group}, by {setting}" if setting else group
        lines[group] = Line(label, setting, line_style(index))
    return lines


def _find_setting(names: list[str]) -> str:
    """The word beside which all names have a number: "landmarks" of "4 landmarks".

    It is "" if they do not share one, and for a single name.
    """
    settings = set()
    for name in names:
        words = name.split(" ")
        other_words = [word for word in words if not word.isdigit()]
        is_word_and_number = len(words) == 2 and len(other_words) == 1
        settings.add(other_words[0] if is_word_and_number else "")

    has_several_names = len(set(names)) > 1
    if len(settings) == 1 and has_several_names:
        return settings.pop()
    return ""


def _draw_frontier(axes: Axes, frontier: Frame, cost: CostAxis) -> None:
    """Draws a grey line in steps through the points of the frontier."""
    # A point's score can be had at worse costs too, up to the next point: at lower
    # speeds, which lie to its left, and at larger memories, to its right.
    step = "steps-pre" if cost.is_higher_better else "steps-post"
    axes.plot(
        frontier["cost"], frontier["score"], color="0.7", drawstyle=step, zorder=0
    )


def _draw_points(
    axes: Axes, points: Frame, cost: CostAxis, lines: dict[str, Line]
) -> None:
    """Draws the points of each group and their names, and the axis of the cost."""
    for group, group_points in points.groupby("group", sort=False):
        label, setting, style = lines[group]
        sorted_points = group_points.sort_values("cost")
        axes.errorbar(
            sorted_points["cost"],
            sorted_points["score"],
            sorted_points["bar"],
            marker="o",
            capsize=2,
            linewidth=0.7,
            label=label,
            **style,
        )
        for point in sorted_points.itertuples():
            name = point.name.replace(setting, "").strip()
            axes.annotate(
                textwrap.fill(name, LETTERS_BESIDE_A_POINT),
                (point.cost, point.score),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=6,
            )

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(cost.title)


def _summarize_points(runs: Frame, cost: CostAxis) -> Frame:
    """A row for each label: its group, mean cost, mean score, bar and name.

    The name is what the row of the score table says beside the name of the group.
    """
    points = []
    for _, seeds in runs.groupby("label", sort=False):
        first_run = seeds.iloc[0]
        deviation = seeds["score"].std()
        group_phrases = first_run["group"].split(", ")
        row_phrases = first_run["row"].replace(EXACT_MARK, "").split(", ")
        phrases = [x for x in row_phrases if x not in group_phrases]
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


def _find_frontier(points: Frame, cost: CostAxis, metric: str) -> Frame:
    """The points whose score no other point of an equal or better cost reaches."""
    sign = 1 if is_higher_better(metric) else -1
    best_cost_first = points.assign(gain=sign * points["score"]).sort_values(
        ["cost", "gain"], ascending=[not cost.is_higher_better, False]
    )
    best_so_far = best_cost_first["gain"].cummax()
    is_best = best_cost_first["gain"] > best_so_far.shift(fill_value=float("-inf"))
    return best_cost_first[is_best].sort_values("cost")
