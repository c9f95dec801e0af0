"""Runs are named by what they differ in, and by nothing else."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.report.points import group
from nystromformer.lab.report.runs import read_runs

OTHER = {"data_sha256": {"train": "a" * 64, "validation": "b" * 64}}


def labels(runs):
    return [point.label() for point in group(read_runs([runs.folder]))]


def test_runs_that_differ_in_the_seed_need_no_name(runs):
    for seed in (0, 1):
        runs.finished(f"seed{seed}", seed=seed)
    assert labels(runs) == ["nystrom"]


def test_options_are_named_where_runs_differ_in_them_in_order_of_size(runs):
    for landmarks in (256, 16, 64):
        runs.finished(f"nystrom-{landmarks}", attention__num_landmarks=landmarks)
    runs.finished("softmax", arg="softmax,quick")
    assert labels(runs) == [
        "nystrom, 16 landmarks",
        "nystrom, 64 landmarks",
        "nystrom, 256 landmarks",
        "softmax",
    ]


def test_ablations_are_named_by_the_one_option_that_each_changes(runs):
    runs.finished("usual")
    runs.finished("padded", attention__segments="padded")
    runs.finished("without", attention__inverse="none")
    assert labels(runs) == [
        "nystrom",
        "nystrom, inverse none",
        "nystrom, segments padded",
    ]


def test_an_option_that_presets_of_tasks_set_otherwise_is_named_in_all_ablations(runs):
    # ListOps' preset has the convolution, Image's has not.
    runs.finished("listops", arg="nystrom,quick")
    runs.finished("image", task="image", arg="nystrom,quick")
    runs.finished("with", task="image", attention__conv_kernel_size=35)
    runs.finished("padded", attention__segments="padded")
    assert labels(runs) == [
        "nystrom, convolution of 35",
        "nystrom, convolution of 35, segments padded",
        "nystrom, convolution of 0",
        "nystrom, convolution of 35",
    ]


def test_landmarks_are_named_in_all_ablations(runs):
    runs.finished("usual")
    runs.finished("eight", attention__num_landmarks=8)
    runs.finished("padded", attention__segments="padded")
    assert labels(runs) == [
        "nystrom, 8 landmarks",
        "nystrom, 16 landmarks",
        "nystrom, 16 landmarks, segments padded",
    ]


def test_a_grid_of_options_is_named_by_all_of_them(runs):
    for landmarks in (8, 16):
        for segments in ("padded", "valid"):
            changes = {"num_landmarks": landmarks, "segments": segments}
            changes = {f"attention__{key}": value for key, value in changes.items()}
            runs.finished(f"{landmarks}-{segments}", **changes)
    assert labels(runs) == [
        "nystrom, 8 landmarks, segments padded",
        "nystrom, 8 landmarks, segments valid",
        "nystrom, 16 landmarks, segments padded",
        "nystrom, 16 landmarks, segments valid",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task__max_length": 128}, "length 128"),
        ({"train__num_steps": 7000}, "7,000 steps"),
        ({"train__batch_size": 64}, "batch 64"),
        ({"train__eval_every": 50}, "train.eval_every 50"),
        ({"model__num_layers": 3}, "model.num_layers 3"),
        ({"optimizer__learning_rate": 0.002}, "learning rate 0.002"),
        ({"attention__segments": "padded"}, "segments padded"),
    ],
)
def test_other_settings_split_a_cell_and_are_named(runs, changes, words):
    runs.finished("usual")
    runs.finished("other", seed=1, **changes)
    found = labels(runs)
    assert len(found) == 2
    assert f"nystrom, {words}" in found


def test_other_steps_of_another_attention_are_named_too(runs):
    runs.finished("nystrom")
    runs.finished("softmax", arg="softmax,quick", train__num_steps=9000)
    assert labels(runs) == ["nystrom, 5,000 steps", "softmax, 9,000 steps"]


def test_a_preset_is_one_word(runs):
    runs.finished("quick")
    runs.finished("paper", arg="nystrom")
    runs.finished("more", train__num_steps=9000)
    assert labels(runs) == [
        "nystrom, paper preset, 5,000 steps",
        "nystrom, quick preset, 5,000 steps",
        "nystrom, quick preset, 9,000 steps",
    ]


def test_options_that_only_presets_of_tasks_change_need_no_name(runs):
    runs.finished("listops")
    runs.finished("pathfinder", task="pathfinder")
    assert labels(runs) == ["nystrom", "nystrom"]
    runs.finished("more", attention__num_landmarks=24)
    assert labels(runs) == [
        "nystrom, 16 landmarks",
        "nystrom, 24 landmarks",
        "nystrom, 32 landmarks",
    ]


def test_where_data_lie_and_what_is_written_when_makes_no_difference(runs):
    changes = {"task__data_dir": "/there", "train__log_every": 10}
    runs.finished("here")
    runs.finished("there", seed=1, **changes)
    assert labels(runs) == ["nystrom"]


@pytest.mark.parametrize("second", ["finished", "unfinished"])
def test_one_seed_twice_is_an_error_that_names_both(runs, second):
    runs.finished("one", seed=4)
    getattr(runs, second)("two", seed=4, task__data_dir="/there")
    with pytest.raises(ConfigError, match=r"one and .*two hold the same settings"):
        labels(runs)


def test_other_data_under_the_same_settings_are_an_error_that_names_both(runs):
    runs.finished("one")
    runs.finished("two", arg="softmax,quick", result=OTHER)
    with pytest.raises(ConfigError, match=r"one and .*two have read other validation"):
        labels(runs)


def test_other_data_of_other_settings_are_not_compared(runs):
    runs.finished("short")
    runs.finished("long", task__max_length=128, result=OTHER)
    assert labels(runs) == ["nystrom, length 64", "nystrom, length 128"]
