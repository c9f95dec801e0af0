"""Runs are named by what they differ in, and by nothing else."""

import pytest

from nystromformer.lab.report.frame import floor_reached, make_frame, points, values
from nystromformer.lab.report.runs import read_runs

OTHER = {"data_sha256": {"train": "a" * 64, "validation": "b" * 64}}


def read(runs):
    """The frame, and what is left out of it."""
    return make_frame(read_runs([runs.folder])[0])


def labels(runs):
    return [point["label"].iloc[0] for point in points(read(runs)[0])]


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


def test_a_double_counts_once_and_is_named(runs):
    runs.finished("one", 0.4, seed=4)
    runs.finished("same", 0.4, seed=4, task__data_dir="/there")
    runs.finished("unlike", 0.6, seed=4)
    runs.unfinished("begun", seed=4)
    frame, left_out = read(runs)
    assert values(frame, "test") == [0.4]
    assert left_out == [
        f"runs/{name} is left out: it has the settings and seed of runs/one and {why}"
        for name, why in [
            ("same", "counts once"),
            ("unlike", "has another result"),
            ("begun", "counts once"),
        ]
    ]


def test_other_data_under_the_same_settings_are_left_out_and_named(runs):
    runs.finished("one")
    runs.finished("two", arg="softmax,quick", result=OTHER)
    runs.finished("long", task__max_length=128, result=OTHER)  # its data are its own
    assert labels(runs) == ["nystrom, length 64", "nystrom, length 128"]
    (said,) = read(runs)[1]
    assert said.startswith("runs/two is left out: it has read other validation data")


def test_a_point_holds_its_seeds_in_order_and_only_finite_numbers_count(runs):
    found = [None, float("nan"), 3, "fast"]
    for seed, value in zip((2, 1, 3, 0), found, strict=True):
        runs.finished(f"{value}", seed=seed, result={"peak_bytes": value})
    (point,) = points(read(runs)[0])
    assert list(point["seed"]) == [0, 1, 2, 3]
    assert values(point, "peak_bytes") == [3]


def test_tasks_and_attentions_stand_in_the_order_of_their_tables(runs):
    for task in ("image", "listops"):
        for attention in ("none", "softmax", "nystrom"):
            runs.finished(f"{task}-{attention}", task=task, arg=f"{attention},quick")
    found = read(runs)[0]
    assert list(zip(found["task"], found["attention"], strict=True)) == [
        (task, attention)
        for task in ("listops", "image")
        for attention in ("nystrom", "softmax", "none")
    ]


# Of 100 examples at a floor of 0.5, two standard deviations are 0.1.
@pytest.mark.parametrize(
    ("value", "floors", "stuck"),
    [
        (0.59, {"half": 0.5}, "half"),
        (0.61, {"half": 0.5}, None),
        (0.41, {"half": 0.5, "low": 0.1}, "half"),
        (0.39, {"half": 0.5, "low": 0.1}, None),
        (0.02, {"half": 0.5, "low": 0.1}, "low"),
        (0.9, {}, None),
    ],
)
def test_a_run_within_two_standard_deviations_is_at_a_floor(value, floors, stuck):
    result = {"test_accuracy": value, "floors": floors, "test_examples": 100}
    assert floor_reached(result, "accuracy") == stuck


def test_a_loss_is_at_a_floor_where_it_is_above_all():
    floors = {"unigram": 2.5, "bigram": 2.0}
    found = [
        floor_reached({"test_loss": x, "floors": floors}, "loss") for x in (2.2, 3)
    ]
    assert found == [None, "unigram"]


def test_an_unfinished_run_is_at_no_floor():
    assert floor_reached({}, "accuracy") is None


def test_runs_of_another_objective_are_named_and_have_its_metric(runs):
    masked = {"metric": "loss", "validation_loss": 2.0, "test_loss": 2.0}
    runs.finished("one", objective__name="masked", result={**masked, "floors": {}})
    runs.unfinished("two", objective__name="masked", seed=1)
    runs.finished("three")
    assert list(zip(read(runs)[0]["label"], read(runs)[0]["metric"], strict=True)) == [
        ("nystrom, classification", "accuracy"),
        *[("nystrom, masked", "loss")] * 2,
    ]


def test_starting_weights_of_each_seed_are_one_setting(runs):
    for seed in (0, 1):
        source = f"/runs/pretrain-seed{seed}"
        runs.finished(f"{seed}", seed=seed, train__init_from=source)
    runs.finished("scratch")
    assert labels(runs) == ["nystrom, from scratch", "nystrom, from pretrain-seed*"]
