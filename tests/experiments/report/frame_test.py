"""Runs are named by what they differ in, and by nothing else."""

import pytest

from nystromformer.experiments.report.frame import floor_reached, points, values
from tests.experiments.report.conftest import read_frame

OTHER = {"data_sha256": {"train": "a" * 64, "validation": "b" * 64}}
FOUR, PADDED = (
    {"attention__num_landmarks": 4},
    {"attention__landmark_padding": "padded"},
)
CONVOLUTION = {"attention__conv_kernel_size": 35}
SOFTMAX = {"arg": "softmax,quick"}


def labels(runs):
    return [point["label"].iloc[0] for point in points(read_frame(runs)[0])]


# The changes of each run, and the rows that they make.
NAMES = {
    "seeds and where data lie need no name": (
        [{}, {"seed": 1}, {"seed": 2, "task__data_dir": "/x", "train__log_every": 10}],
        ["nystrom"],
    ),
    "options are named where runs differ in them, in order of size": (
        [*({"attention__num_landmarks": n} for n in (256, 16, 64)), SOFTMAX],
        [*(f"nystrom, {n} landmarks" for n in (16, 64, 256)), "softmax"],
    ),
    "what is not the preset's is named in an attention's only run": (
        [FOUR, SOFTMAX],
        ["nystrom, 4 landmarks", "softmax"],
    ),
    "it has one name in all tasks": (
        [
            {"attention__conv_kernel_size": 0},
            {"task": "image", "attention__conv_kernel_size": 0},  # as its preset
            SOFTMAX,
        ],
        ["nystrom, convolution of 0", "softmax", "nystrom, convolution of 0"],
    ),
    "what all runs change is said above the table": (
        [FOUR, {**FOUR, "seed": 1}],
        ["nystrom"],
    ),
    "one is no plural": (
        [{"arg": "reformer,quick", "attention__num_hashes": n} for n in (1, 4)],
        ["reformer, 1 hash", "reformer, 4 hashes"],
    ),
    "epochs are named in place of the steps that follow from them": (
        [{"train__num_epochs": n} for n in (1.0, 2.5, 4.0)],
        ["nystrom, 1 epoch", "nystrom, 2.5 epochs", "nystrom, 4 epochs"],
    ),
    "ablations are named by the one option that each changes": (
        [{}, PADDED, {"attention__pinv": "identity"}],
        ["nystrom", "nystrom, pinv identity", "nystrom, landmark_padding count"],
    ),
    # ListOps' preset has the convolution, Image's has not.
    "what presets of tasks set otherwise is named in all ablations": (
        [{}, PADDED, *({"task": "image", **x} for x in ({}, CONVOLUTION))],
        [
            "nystrom, convolution of 35",
            "nystrom, convolution of 35, landmark_padding count",
            "nystrom, convolution of 0",
            "nystrom, convolution of 35",
        ],
    ),
    "landmarks are named in all ablations": (
        [{}, FOUR, PADDED],
        [
            "nystrom, 4 landmarks",
            "nystrom, 6 landmarks",
            "nystrom, 6 landmarks, landmark_padding count",
        ],
    ),
    "a grid of options is named by all of them": (
        [{}, FOUR, PADDED, {**FOUR, **PADDED}],
        [
            f"nystrom, {n} landmarks, landmark_padding {x}"
            for n in (4, 6)
            for x in ("padded", "valid")
        ],
    ),
    "other settings split a cell": (
        [{}, {"seed": 1, "task__max_length": 128}],
        ["nystrom, length 48", "nystrom, length 128"],
    ),
    "other steps of another attention are named too": (
        [{}, {**SOFTMAX, "train__num_steps": 9000}],
        ["nystrom, 12,000 steps", "softmax, 9,000 steps"],
    ),
    "a preset is one word": (
        [{}, {"arg": "nystrom"}, {"train__num_steps": 9000}],
        [
            "nystrom, paper preset, 5,000 steps",
            "nystrom, quick preset, 9,000 steps",
            "nystrom, quick preset, 12,000 steps",
        ],
    ),
    "what only presets of tasks change needs no name": (
        [{}, {"task": "pathfinder"}],
        ["nystrom", "nystrom"],
    ),
    "what presets of tasks and runs change does": (
        [{}, {"task": "pathfinder"}, {"attention__num_landmarks": 24}],
        [f"nystrom, {n} landmarks" for n in (6, 24, 32)],
    ),
    "starting weights of each seed are one setting": (
        [*({"seed": n, "train__init_from": f"/x/pre-seed{n}"} for n in (0, 1)), {}],
        ["nystrom, from scratch", "nystrom, from pre-seed*"],
    ),
    "seeds from one source that has a seed in its name are one setting": (
        [*({"seed": n, "train__init_from": "/x/pre-seed0/"} for n in (0, 1)), {}],
        ["nystrom, from scratch", "nystrom, from pre-seed0"],
    ),
    "where a source lies does not matter": (
        [*({"seed": n, "train__init_from": f"/seed{7 * n}/pre"} for n in (0, 1)), {}],
        ["nystrom, from scratch", "nystrom, from pre"],
    ),
}


@pytest.mark.parametrize("case", NAMES)
def test_runs_are_named_by_what_they_differ_in(runs, case):
    changes, names = NAMES[case]
    for number, config in enumerate(changes):
        runs.finished(f"{number}", **config)
    assert labels(runs) == names


def test_sources_of_one_name_and_different_weights_are_told_apart(runs):
    for seed, folder in enumerate("abc"):  # c is a copy of a
        source = {"init_from_sha256": {"c": "a"}.get(folder, folder) * 64}
        path = f"/{folder}/pre"
        runs.finished(folder, result=source, seed=seed, train__init_from=path)
    assert labels(runs) == ["nystrom, from /a/pre", "nystrom, from /b/pre"]


def test_a_tokenizer_counts_by_its_content_wherever_it_lies(runs):
    for seed, words in enumerate(("{}", "{}", "[]")):
        config = {"task": "text", "task__tokenizer": f"/{seed}/tokenizer.json"}
        workdir = runs.finished(f"{seed}", seed=seed, **config)
        (workdir / "tokenizer.json").write_text(words)
    runs.unfinished("waiting", seed=3, task="text", task__tokenizer="/0/tokenizer.json")
    assert sorted(map(len, points(read_frame(runs)[0]))) == [1, 3]


def test_a_double_counts_once_and_is_named(runs):
    runs.finished("one", 0.4, seed=4)
    runs.finished("same", 0.4, seed=4, task__data_dir="/there")
    runs.finished("unlike", 0.6, seed=4)
    runs.unfinished("begun", seed=4)
    frame, left_out = read_frame(runs)
    assert values(frame, "test") == [40]
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
    runs.finished("two", result=OTHER, **SOFTMAX)
    runs.finished("long", task__max_length=128, result=OTHER)  # its data are its own
    assert labels(runs) == ["nystrom, length 48", "nystrom, length 128"]
    (said,) = read_frame(runs)[1]
    assert said.startswith("runs/two is left out: it has read other validation data")


def test_a_point_holds_its_seeds_in_order_and_only_finite_numbers_count(runs):
    found = [None, float("nan"), 3 * 2**20, "fast"]
    for seed, value in zip((2, 1, 3, 0), found, strict=True):
        runs.finished(f"{value}", seed=seed, result={"peak_bytes": value})
    (point,) = points(read_frame(runs)[0])
    assert list(point["seed"]) == [0, 1, 2, 3]
    assert values(point, "peak_bytes") == [3]


def test_tasks_and_attentions_stand_in_the_order_of_their_tables(runs):
    for task in ("image", "listops"):
        for attention in ("identity", "softmax", "nystrom"):
            runs.finished(f"{task}-{attention}", task=task, arg=f"{attention},quick")
    found = read_frame(runs)[0]
    assert list(zip(found["task"], found["attention"], strict=True)) == [
        (task, attention)
        for task in ("listops", "image")
        for attention in ("nystrom", "softmax", "identity")
    ]


# Of 100 examples at a floor of 0.5, two standard deviations are 0.1.
@pytest.mark.parametrize(
    ("metric", "value", "floors", "stuck"),
    [
        ("accuracy", 0.59, {"half": 0.5}, "half"),
        ("accuracy", 0.61, {"half": 0.5}, None),
        ("accuracy", 0.41, {"half": 0.5, "low": 0.1}, "half"),
        ("accuracy", 0.39, {"half": 0.5, "low": 0.1}, None),
        ("accuracy", 0.02, {"half": 0.5, "low": 0.1}, "low"),
        ("accuracy", 0.9, {}, None),
        ("loss", 2.2, {"unigram": 2.5, "bigram": 2.0}, None),
        ("loss", 3.0, {"unigram": 2.5, "bigram": 2.0}, "unigram"),
    ],
)
def test_a_run_within_two_standard_deviations_is_at_a_floor(
    metric, value, floors, stuck
):
    result = {"metric": metric, f"test_{metric}": value}
    assert floor_reached({**result, "floors": floors, "test_examples": 100}) == stuck


def test_runs_of_another_objective_are_named_and_have_its_metric(runs):
    masked = {"metric": "loss", "validation_loss": 2.0, "test_loss": 2.0}
    runs.finished("one", arg="nystrom,quick,pretrain", result={**masked, "floors": {}})
    runs.unfinished("two", arg="nystrom,quick,pretrain", seed=1)
    runs.finished("three")
    frame, _ = read_frame(runs)
    assert list(zip(frame["label"], frame["metric"], strict=True)) == [
        ("nystrom, quick preset", "accuracy"),
        *[("nystrom, quick,pretrain preset", "loss")] * 2,
    ]
