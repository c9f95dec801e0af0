"""The numbers that the figures draw, and how their lines are named."""

import json

import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgba_array

from nystromformer.experiments.plotting import ATTENTION_COLORS, save_figure
from nystromformer.experiments.report.figures import (
    COST_AXES,
    _find_frontier,
    draw_by_cost,
    draw_figures,
)
from tests.experiments.report.conftest import SOFTMAX


def lines_by_figure(runs):
    """The lines of each figure of a report, by its name."""
    return {
        name: figure.axes[0].get_lines()
        for name, figure in draw_figures(runs.read(), "curves")
    }


def test_draw_curves_averages_seeds_up_to_the_last_step_of_all(runs):
    runs.add("nystrom,quick", 0.5, steps=(50, 100, 150))
    workdir = runs.add("nystrom,quick", seed=1, steps=(50, 100))
    with open(workdir / "metrics.jsonl", "a") as file:
        file.write('{"step": 150, "spl')  # It trains, and is writing this line.
    lines = lines_by_figure(runs)
    first, second, mean = lines["listops_curves_train_loss"]
    assert list(first.get_xdata()) == [50, 100, 150]
    assert list(first.get_ydata()) == [2 / 50, 2 / 100, 2 / 150]
    assert list(second.get_xdata()) == [50, 100]
    assert list(mean.get_xdata()) == [50, 100]
    percentages = lines["listops_curves_accuracy"][0].get_ydata()
    assert percentages == pytest.approx([5, 10, 15])


def test_draw_curves_shows_a_single_value_as_a_point(runs):
    runs.add("nystrom,quick", 0.5, steps=(50,))
    runs.add("nystrom,quick", 0.5, seed=1, steps=(50, 100))
    curves = lines_by_figure(runs)["listops_curves_accuracy"][:3]
    assert [line.get_marker() for line in curves] == ["o", "", "o"]


def test_draw_figures_has_each_validated_metric_and_no_empty_one(runs):
    runs.add("nystrom,quick", steps=())
    assert not lines_by_figure(runs)
    runs.add("nystrom,quick", 0.5, seed=1)
    names = list(lines_by_figure(runs))
    assert names == ["listops_curves_accuracy", "listops_curves_train_loss"]


def test_draw_figures_has_no_validation_before_there_is_any(runs):
    workdir = runs.add("nystrom,quick")
    row = {"step": 5, "split": "train", "loss": 2.0, "accuracy": 0.1}
    (workdir / "metrics.jsonl").write_text(f"{json.dumps(row)}\n")
    assert list(lines_by_figure(runs)) == ["listops_curves_train_loss"]


def add_costs(runs, arg, test, speed, mebibytes, **changes):
    costs = {"examples_per_second": speed, "compiled_bytes": mebibytes * 2**20}
    runs.add(arg, test, result=costs, **changes)


def names_in(axes):
    """The names beside points, without those of floors."""
    names = [text.get_text() for text in axes.texts]
    return [name for name in names if not name.startswith(FLOOR)]


FLOOR = "floor of the test: "


def floors_in(figure):
    """The heights of the floors by their names."""
    [axes] = figure.axes
    names = [text.get_text() for text in axes.texts]
    floors = {
        name.removeprefix(FLOOR): text.xy[1]
        for name, text in zip(names, axes.texts, strict=True)
        if name.startswith(FLOOR)
    }
    heights = [line.get_ydata()[0] for line in axes.get_lines()]
    assert set(floors.values()) <= set(heights)
    return floors


def test_figures_have_the_floors_of_their_scores(runs):
    add_costs(runs, "softmax,quick", 0.5, 100.0, 1)
    add_costs(runs, "nystrom,quick", 0.5, 200.0, 1)
    runs.add("linear,quick")
    floors = {"majority class": 12, "root operator": 25}
    for kind in ("speed", "memory", "curves"):
        figures = dict(draw_figures(runs.read(), kind))
        loss = figures.pop("listops_curves_train_loss", None)
        assert loss is None or floors_in(loss) == {}
        [figure] = figures.values()
        assert floors_in(figure) == floors

    # The longer expressions have a floor of their own.
    result = {"floors": {"majority class": 0.12, "root operator": 0.3}}
    runs.add("softmax,quick", 0.5, result=result, task__max_length=900)
    curves = dict(draw_figures(runs.read(), "curves"))["listops_curves_accuracy"]
    names = list(floors_in(curves))
    assert len(names) == 3
    assert "majority class" in names
    assert "root operator, max_length=900" in names


def test_draw_by_cost_draws_the_best_score_at_each_cost(runs):
    add_costs(runs, "softmax,quick", 0.80, 100.0, 40)
    add_costs(runs, "nystrom,quick", 0.60, 400.0, 20, attention__num_landmarks=16)
    add_costs(runs, "nystrom,quick", 0.70, 200.0, 30, attention__num_landmarks=64)
    # This one is slower than a better one.
    add_costs(runs, "linear,quick", 0.50, 300.0, 10)
    frame = runs.read()

    speed = draw_by_cost(frame, COST_AXES["speed"]).axes[0]
    frontier = speed.get_lines()[0]
    points = [[100, 80], [200, 70], [400, 60]]
    assert frontier.get_xydata().round(9).tolist() == points
    # At 150 examples a second, only what is faster can be had.
    assert frontier.get_drawstyle() == "steps-pre"
    assert sorted(names_in(speed)) == ["16", "64"]
    [legend] = speed.figure.legends
    lines = [text.get_text() for text in legend.get_texts()]
    assert sorted(lines) == ["linear", "nystrom, by num_landmarks", SOFTMAX]

    memory = draw_by_cost(frame, COST_AXES["memory"]).axes[0]
    frontier = memory.get_lines()[0]
    points = [[10, 50], [20, 60], [30, 70], [40, 80]]
    assert frontier.get_xydata().round(9).tolist() == points
    assert frontier.get_drawstyle() == "steps-post"


def test_find_frontier_of_a_loss_is_the_smallest_at_each_cost():
    points = pd.DataFrame({"cost": [100, 200, 400], "score": [2.0, 1.5, 3.0]})
    frontier = _find_frontier(points, COST_AXES["speed"], "loss")
    assert frontier["cost"].tolist() == [200, 400]
    frontier = _find_frontier(points, COST_AXES["memory"], "mlm_loss")
    assert frontier["cost"].tolist() == [100, 200]


def test_find_frontier_leaves_out_a_point_that_is_no_better_than_a_cheaper_one():
    points = pd.DataFrame({"cost": [100, 200, 400], "score": [5.0, 5.0, 4.0]})
    frontier = _find_frontier(points, COST_AXES["speed"], "accuracy")
    assert frontier["cost"].tolist() == [200, 400]
    frontier = _find_frontier(points, COST_AXES["memory"], "accuracy")
    assert frontier["cost"].tolist() == [100]


def test_draw_by_cost_draws_the_mean_cost_of_seeds(runs):
    add_costs(runs, "softmax,quick", 0.5, 100.0, 1)
    add_costs(runs, "softmax,quick", 0.5, 300.0, 1, seed=1)
    add_costs(runs, "nystrom,quick", 0.5, 500.0, 1)
    assert speeds(runs.read()) == [[500], [200]]


def speeds(frame):
    """The examples a second of the points of each line."""
    axes = draw_by_cost(frame, COST_AXES["speed"]).axes[0]
    return [container[0].get_xdata().tolist() for container in axes.containers]


def test_draw_by_cost_names_points_whole_that_share_no_setting(runs):
    add_costs(runs, "nystrom,quick", 0.6, 400.0, 1, attention__num_landmarks=16)
    add_costs(runs, "nystrom,quick", 0.7, 200.0, 1, attention__conv_kernel_size=0)
    axes = draw_by_cost(runs.read(), COST_AXES["speed"]).axes[0]
    names = names_in(axes)
    assert all("=" in name for name in names), names
    assert len(set(names)) == 2


def test_draw_by_cost_writes_no_name_over_another_and_labels_speeds(runs):
    """Three points are near to each other, and the axis is shorter than a decade."""
    for landmarks, speed in ((3, 1000.0), (6, 1010.0), (12, 1020.0), (24, 4000.0)):
        changes = {"attention__num_landmarks": landmarks}
        add_costs(runs, "nystrom,quick", 0.5, speed, 1, **changes)
    add_costs(runs, "softmax,quick", 0.5, 600.0, 1)
    axes = draw_by_cost(runs.read(), COST_AXES["speed"]).axes[0]
    axes.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low < tick < high]
    assert len(ticks) >= 4


def test_draw_by_cost_leaves_room_for_panels_beside_long_names(runs, tmp_path):
    """matplotlib warns, and tests fail, where there is none."""
    changes = {"train__batch_size": 16, "optimizer__learning_rate": 0.002}
    changes |= {"model__num_layers": 1, "model__mlp_dim": 64, "train__num_steps": 700}
    changes |= {"model__dropout_rate": 0.1, "optimizer__warmup_steps": 30}
    changes |= {"train__grad_accum_steps": 2, "train__length_buckets": 2}
    changes |= {"train__eval_every": 70, "model__embedding_norm": True}
    add_costs(runs, "nystrom,quick", 0.6, 400.0, 1, **changes)
    add_costs(runs, "nystrom,quick", 0.7, 200.0, 1)
    figure = draw_by_cost(runs.read(), COST_AXES["speed"])
    save_figure(figure, tmp_path / "figure")


def test_draw_by_cost_names_a_group_alike_in_all_panels(runs):
    places = [(500, 16), (500, 64), (900, 16)]
    for length, landmarks in places:
        add_costs(
            runs,
            "nystrom,quick",
            0.6,
            100.0,
            1,
            task__max_length=length,
            attention__num_landmarks=landmarks,
        )
    for length in (500, 900):
        add_costs(runs, "softmax,quick", 0.6, 50.0, 1, task__max_length=length)
    figure = draw_by_cost(runs.read(), COST_AXES["speed"])
    names = [sorted(names_in(axes)) for axes in figure.axes]
    assert names == [["16", "64"], ["16"]]
    lines = [text.get_text() for text in figure.legends[0].get_texts()]
    assert lines == ["nystrom, by num_landmarks", SOFTMAX]


def test_draw_by_cost_joins_the_points_of_an_attention(runs):
    """They are joined by their costs, whatever the order of their names."""
    add_costs(runs, "softmax,quick", 0.5, 300.0, 1, model__num_layers=1)
    add_costs(runs, "nystrom,quick", 0.5, 100.0, 1, model__num_layers=1)
    add_costs(runs, "softmax,quick", 0.5, 200.0, 1, model__num_layers=2)
    add_costs(runs, "nystrom,quick", 0.5, 200.0, 1, model__num_layers=2)
    assert speeds(runs.read()) == [[100, 200], [200, 300]]


def test_draw_by_cost_has_bars_of_the_seeds_or_of_the_examples_of_one(runs):
    """Of 2,000 examples a half is known to 100 √(0.25 / 2,000) points."""
    for seed, test in ((0, 0.4), (1, 0.6)):
        add_costs(runs, "nystrom,quick", test, 100.0, 1, seed=seed)
    add_costs(runs, "softmax,quick", 0.5, 200.0, 1)
    axes = draw_by_cost(runs.read(), COST_AXES["speed"]).axes[0]
    half_heights = []
    for _, _, [bars] in axes.containers:
        [[(_, low), (_, high)]] = bars.get_segments()
        half_heights.append((high - low) / 2)
    assert half_heights == pytest.approx([200**0.5, 1.118034])


def test_draw_by_cost_has_a_panel_for_each_task_option_and_device(runs):
    for length in (500, 900):
        for arg in ("softmax,quick", "nystrom,quick"):
            add_costs(runs, arg, 0.5, 100.0, 1, task__max_length=length)
    figure = draw_by_cost(runs.read(), COST_AXES["speed"])
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [f"listops, max_length={n}, CPU, 2 cores" for n in (500, 900)]


def test_draw_by_cost_has_a_panel_of_runs_whose_device_is_not_known(runs):
    for arg in ("softmax,quick", "nystrom,quick"):
        runs.add(arg, 0.5, result={"device": None})
    [axes] = draw_by_cost(runs.read(), COST_AXES["speed"]).axes
    assert axes.get_title() == "listops"


def test_draw_by_cost_is_none_for_a_single_setting(runs):
    for seed in (0, 1):
        add_costs(runs, "softmax,quick", 0.5, 100.0, 1, seed=seed)
    assert draw_by_cost(runs.read(), COST_AXES["speed"]) is None


def test_an_attention_has_its_colour_in_all_figures(runs):
    add_costs(runs, "linear,quick", 0.5, 100.0, 1)
    add_costs(runs, "nystrom,quick", 0.5, 200.0, 1)
    add_costs(runs, "nystrom,quick", 0.6, 300.0, 1, attention__num_landmarks=7)
    frame = runs.read()
    figures = dict(draw_figures(frame, "curves"))
    figures["speed"] = draw_by_cost(frame, COST_AXES["speed"])
    for figure in figures.values():
        [legend] = figure.legends
        for text, line in zip(legend.get_texts(), legend.legend_handles, strict=True):
            attention = text.get_text().partition(", ")[0]
            [color, *_] = to_rgba_array(line.get_color())
            assert to_hex(color).upper() == ATTENTION_COLORS[attention]
