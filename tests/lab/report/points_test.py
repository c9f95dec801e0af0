"""Means, spreads and floors, by hand."""

import pytest

from nystromformer.lab.report.points import floor_reached, group, mean_and_sd
from nystromformer.lab.report.runs import read_runs


def test_mean_and_sample_standard_deviation():
    assert mean_and_sd([50.0, 52.0, 57.0]) == (53.0, pytest.approx(13**0.5))
    assert mean_and_sd([50.0]) == (50.0, None)
    assert mean_and_sd([]) == (None, None)


def test_a_point_holds_its_seeds_in_order_and_knows_which_are_finished(runs):
    runs.finished("c", seed=1, accuracy=0.5)
    runs.unfinished("a", seed=3)
    runs.finished("b", seed=2, accuracy=0.6)
    (point,) = group(read_runs([runs.folder]))
    assert [run.seed for run in point.runs] == [1, 2, 3]
    assert [run.seed for run in point.finished] == [1, 2]
    assert point.values("test_accuracy") == [0.5, 0.6]
    assert point.floors == {"majority class": 0.12, "root operator": 0.25}


def test_only_finite_numbers_count(runs):
    for seed, value in enumerate([None, float("nan"), 3, "fast"]):
        runs.finished(f"{seed}", seed=seed, result={"peak_bytes": value})
    (point,) = group(read_runs([runs.folder]))
    assert point.values("peak_bytes") == [3]


# Of 100 examples at a floor of 0.5, two standard deviations are 0.1.
@pytest.mark.parametrize(
    ("accuracy", "floors", "stuck"),
    [
        (0.59, {"half": 0.5}, "half"),
        (0.61, {"half": 0.5}, None),
        (0.41, {"half": 0.5, "low": 0.1}, "half"),
        (0.39, {"half": 0.5, "low": 0.1}, None),
        (0.02, {"half": 0.5, "low": 0.1}, "low"),
        (0.3, {"half": 0.5}, "half"),
        (0.9, {}, None),
    ],
)
def test_a_run_within_two_standard_deviations_is_at_a_floor(
    runs, accuracy, floors, stuck
):
    runs.finished("one", accuracy, result={"floors": floors, "test_examples": 100})
    (run,) = read_runs([runs.folder])
    assert floor_reached(run) == stuck


def test_an_unfinished_run_is_at_no_floor(runs):
    runs.unfinished("one")
    (run,) = read_runs([runs.folder])
    assert floor_reached(run) is None


def test_tasks_and_attentions_stand_in_the_order_of_their_tables(runs):
    for task in ("image", "listops"):
        for attention in ("none", "softmax", "nystrom"):
            runs.finished(f"{task}-{attention}", task=task, arg=f"{attention},quick")
    found = group(read_runs([runs.folder]))
    assert [(point.task, point.attention) for point in found] == [
        (task, attention)
        for task in ("listops", "image")
        for attention in ("nystrom", "softmax", "none")
    ]
