"""The figures of a report: scores over what they cost, and learning curves.

An attention has one colour in all of them; its rows differ in their strokes. Thin
dotted lines are the floors: what fixed rules reach on the test examples.
"""

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nystromformer.experiments.plotting import (
    add_legend,
    attention_style,
    new_figure,
    set_value_ticks,
)
from nystromformer.experiments.report.runs import NOT_RECORDED, heading, scale
from nystromformer.experiments.report.tables import MEMORY, SPEED, Cost
from nystromformer.metrics import is_higher_better, is_rate

LETTERS_BESIDE_A_POINT = 40
FLOOR_COLOR = "0.35"
COST_AXES = {"speed": SPEED, "memory": MEMORY}
FIGURES = (*COST_AXES, "curves")  # the kinds that `draw_figures` knows


def draw_figures(frame: pd.DataFrame, kind: str) -> Iterator[tuple[str, Figure]]:
    """Draws what the runs have data for, each figure with its name.

    Args:
      frame: a row for each run and metric.
      kind: one of FIGURES: scores by speed or by memory, or learning curves.
    """
    for task, runs in frame.groupby("task", sort=False):
        if kind == "curves":
            for name, figure in _draw_all_curves(runs):
                yield f"{task}_{name}", figure
            continue
        for metric, group in runs[runs["finished"]].groupby("metric", sort=False):
            figure = draw_by_cost(group, COST_AXES[kind])
            if figure is not None:
                yield f"{task}_{kind}_{metric}", figure


def _draw_all_curves(runs: pd.DataFrame) -> Iterator[tuple[str, Figure]]:
    """Draws the validated rates and selected metrics of a task, and the loss."""
    points = _curve_points(runs)
    if points.empty:
        return
    is_validation = points["split"] == "validation"
    validated = points[is_validation].dropna(axis="columns", how="all")
    shown_metrics = {name for name in validated if is_rate(name)}
    shown_metrics |= set(runs["metric"]) & set(validated)
    for metric in sorted(shown_metrics):
        floors = _find_floors(runs, metric)
        yield f"curves_{metric}", draw_curves(points, "validation", metric, floors)
    if "train" in set(points["split"]):
        yield "curves_train_loss", draw_curves(points, "train", "loss", floors={})


def _curve_points(runs: pd.DataFrame) -> pd.DataFrame:
    """The lines of metrics.jsonl of all runs of a task, with the names of the runs."""
    points = []
    for run in runs.drop_duplicates("run").itertuples():
        names = {"attention": run.attention, "label": run.label, "seed": run.seed}
        for row in run.curve:
            points.append({"task": run.task, **names, **row})
    return pd.DataFrame(points)


def _find_floors(runs: pd.DataFrame, metric: str) -> dict[str, float]:
    """What each rule reaches on the test examples, by its name; rates in per cent.

    A rule that reaches several values has the options of the task behind its name.
    """
    values = defaultdict(dict)  # rule -> value -> options of the task
    for run in runs[runs["metric"] == metric].itertuples():
        for rule, value in run.floors.items():
            values[rule].setdefault(scale(metric) * value, run.data)
    floors = {}
    for rule, options_of_value in values.items():
        for value, options in options_of_value.items():
            has_options = len(options_of_value) > 1 and options
            floors[f"{rule}, {options}" if has_options else rule] = value
    return floors


def _draw_floors(axes: Axes, floors: Mapping[str, float]) -> None:
    """Draws each floor as a thin line, with its name above the right end.

    Both lie behind the runs, and the names in front of the lines.
    """
    for name, value in floors.items():
        axes.axhline(value, color=FLOOR_COLOR, linestyle=":", linewidth=0.9, zorder=-2)
        axes.annotate(
            f"floor of the test: {name}",
            (1, value),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 2),
            textcoords="offset points",
            horizontalalignment="right",
            fontsize=6,
            color=FLOOR_COLOR,
            bbox={"facecolor": "white", "linewidth": 0, "pad": 0.2},
            zorder=-1,
        )


def draw_curves(
    points: pd.DataFrame, split: str, metric: str, floors: Mapping[str, float]
) -> Figure:
    """Draws seeds as thin lines and, where all have a value, their mean as a thick one.

    Args:
      points: the lines of metrics.jsonl, with `task`, `attention`, `label` and `seed`.
      split: "train" or "validation".
      metric: a column of the points.
      floors: in the unit of the figure, by their names.
    """
    figure = new_figure()
    axes = figure.axes[0]
    drawn_points = points[(points["split"] == split) & points[metric].notna()]
    for attention, rows in drawn_points.groupby("attention", sort=False):
        for index, (label, group) in enumerate(rows.groupby("label", sort=False)):
            by_seed = group.pivot(index="step", columns="seed", values=metric)
            by_seed = scale(metric) * by_seed
            style = attention_style(attention, index)
            for seed in by_seed:
                values = by_seed[seed].dropna()
                marker = _marker(values)
                axes.plot(values, **style, linewidth=0.6, alpha=0.5, marker=marker)
            mean = by_seed.dropna().mean(axis=1)
            axes.plot(mean, **style, linewidth=2, marker=_marker(mean), label=label)

    task = points["task"].iloc[0]
    axes.set(xlabel="step", ylabel=heading(split, metric), title=task)
    _draw_floors(axes, floors)
    add_legend(figure)
    _move_names_apart(figure)
    return figure


def _marker(values: pd.Series) -> str:
    """A point for a single value, which a line would not show."""
    return "o" if len(values) == 1 else ""


def draw_by_cost(runs: pd.DataFrame, cost: Cost) -> Figure | None:
    """Draws the score of each row over what it costs.

    Each row is a point in the colour of its attention, and the points of an attention
    are joined. The grey line is the frontier: the best score at each cost. There is a
    panel for each set of task options and each device. A bar is the standard deviation
    over seeds, or, for the accuracy of a single seed, the binomial one.

    Args:
      runs: finished runs of one task and metric.
      cost: the horizontal axis.

    Returns:
      The figure; None if no panel has two rows whose cost is known.
    """
    measured_runs = runs[runs[cost.key] > 0]
    panels = {}
    floors = {}
    by_panel = measured_runs.groupby(["data", "device"], sort=False)
    metric = runs["metric"].iloc[0]
    for data_and_device, panel in by_panel:
        if panel["label"].nunique() > 1:
            panels[data_and_device] = _summarize_points(panel, cost)
            floors[data_and_device] = _find_floors(panel, metric)
    if not panels:
        return None

    lines = _name_lines(pd.concat(list(panels.values())))
    figure = new_figure(columns=len(panels))
    for axes, (data_and_device, points) in zip(
        figure.axes, panels.items(), strict=True
    ):
        _draw_frontier(axes, _find_frontier(points, cost, metric), cost)
        _draw_points(axes, points, cost, lines)
        _draw_floors(axes, floors[data_and_device])
        title_parts = [runs["task"].iloc[0], *data_and_device]
        known_parts = [part for part in title_parts if part not in ("", NOT_RECORDED)]
        axes.set_title(", ".join(known_parts))
        axes.set_ylabel(heading("test", metric))
    add_legend(figure, num_columns=len(panels))
    _move_names_apart(figure)
    return figure


def _summarize_points(runs: pd.DataFrame, cost: Cost) -> pd.DataFrame:
    """A row for each label: its attention, mean cost and score, bar and name."""
    points = []
    for _, seeds in runs.groupby("label", sort=False):
        first_run = seeds.iloc[0]
        deviation = seeds["score"].std()
        points.append(
            {
                "attention": first_run["attention"],
                "cost": seeds[cost.key].mean() / cost.unit,
                "score": seeds["score"].mean(),
                "bar": first_run["score_sd"] if pd.isna(deviation) else deviation,
                "name": first_run["row"].partition(", ")[2],
            }
        )
    return pd.DataFrame(points)


class Line(NamedTuple):
    """How the points of an attention are named.

    Attributes:
      label: what the legend says, such as "nystrom, by num_landmarks".
      hidden: the words that are left out beside the points, such as "num_landmarks=".
    """

    label: str
    hidden: str


def _name_lines(points: pd.DataFrame) -> dict[str, Line]:
    """The names of each attention's line and points, the same in all panels.

    The legend has the whole name of a single row. If several rows differ in one
    setting, the legend has its key, and the points have its values.
    """
    lines = {}
    for attention, rows in points.groupby("attention"):
        names = list(rows["name"].unique())
        keys = {name.partition("=")[0] for name in names}
        if len(names) == 1:
            label = ", ".join(filter(None, [attention, names[0]]))
            lines[attention] = Line(label, hidden=names[0])
        elif len(keys) == 1 and not any(", " in name for name in names):
            key = keys.pop()
            lines[attention] = Line(f"{attention}, by {key}", hidden=f"{key}=")
        else:
            lines[attention] = Line(attention, hidden="")
    return lines


def _draw_frontier(axes: Axes, frontier: pd.DataFrame, cost: Cost) -> None:
    """Draws a grey line in steps through the points of the frontier."""
    # A point's score can be had at worse costs too, up to the next point: at lower
    # speeds, which lie to its left, and at larger memories, to its right.
    step = "steps-pre" if cost.is_higher_better else "steps-post"
    axes.plot(
        frontier["cost"], frontier["score"], color="0.7", drawstyle=step, zorder=0
    )


def _draw_points(
    axes: Axes, points: pd.DataFrame, cost: Cost, lines: dict[str, Line]
) -> None:
    """Draws the points of each attention and their names, and the axis of the cost."""
    for attention, rows in points.groupby("attention", sort=False):
        line = lines[attention]
        style: Any = attention_style(attention)
        sorted_points = rows.sort_values("cost")
        axes.errorbar(
            sorted_points["cost"],
            sorted_points["score"],
            sorted_points["bar"],
            marker="o",
            capsize=2,
            linewidth=0.7,
            label=line.label,
            **style,
        )

    axes.set_xscale("log")
    axes.set_xlabel(cost.axis_title)
    set_value_ticks(axes.xaxis)
    _name_points(axes, points, lines)


def _name_points(axes: Axes, points: pd.DataFrame, lines: dict[str, Line]) -> None:
    """Writes the names of points beside them, on the side that has more room."""
    middle = points["cost"].min() ** 0.5 * points["cost"].max() ** 0.5
    for point in points.itertuples():
        name = point.name.removeprefix(lines[point.attention].hidden)
        if not name:
            continue
        is_right_half = point.cost > middle
        axes.annotate(
            textwrap.fill(name, LETTERS_BESIDE_A_POINT),
            (point.cost, point.score),
            xytext=(-3 if is_right_half else 3, 3),
            textcoords="offset points",
            horizontalalignment="right" if is_right_half else "left",
            fontsize=6,
        )


def _move_names_apart(figure: Figure) -> None:
    """Raises names of points and floors until none lies over another."""
    figure.draw_without_rendering()  # places the panels
    for axes in figure.axes:
        boxes = []
        lowest_first = sorted(axes.texts, key=lambda text: text.get_window_extent().y0)
        for text in lowest_first:
            box = text.get_window_extent()
            while any(box.overlaps(other) for other in boxes):
                x, y = text.get_position()
                text.set_position((x, y + 1))
                box = text.get_window_extent()
            boxes.append(box)


def _find_frontier(points: pd.DataFrame, cost: Cost, metric: str) -> pd.DataFrame:
    """The points whose score no other point of an equal or better cost reaches."""
    sign = 1 if is_higher_better(metric) else -1
    best_cost_first = points.assign(gain=sign * points["score"]).sort_values(
        ["cost", "gain"], ascending=[not cost.is_higher_better, False]
    )
    best_so_far = best_cost_first["gain"].cummax()
    is_best = best_cost_first["gain"] > best_so_far.shift(fill_value=float("-inf"))
    return best_cost_first[is_best].sort_values("cost")
