"""Cells and CSV values, computed by hand."""

import pytest

from nystromformer.experiments.report.scores import (
    NOTHING,
    cost_table,
    details,
    paired_table,
    score_rows,
    score_table,
    shared,
)
from tests.experiments.report.conftest import read_frame

LRA = ("listops", "text", "retrieval", "image", "pathfinder")


def frame(runs):
    return read_frame(runs)[0]


def cells(table):
    """Row name -> column name -> text."""
    return table.set_index("attention").to_dict("index")


def scores(runs, remarks=None):
    return cells(score_table(frame(runs), remarks or {}))


def finish_three(runs, **config):
    for seed, accuracy in enumerate([0.50, 0.52, 0.57]):
        runs.finished(f"{config}-{seed}", accuracy, seed=seed, **config)


def test_an_incomplete_sweep_gives_a_partial_table(runs):
    finish_three(runs)
    runs.unfinished("more", seed=3, steps=(500,))
    runs.unfinished("softmax-0", arg="softmax,quick", steps=(1000, 4000))
    runs.unfinished("softmax-1", arg="softmax,quick", seed=1, steps=())
    runs.finished("image", 0.12, arg="softmax,quick", task="image")
    found = scores(runs)
    assert found["nystrom"]["listops accuracy, %"] == (
        "53.00 ± 3.61 (3 of 4, 500 of 12,000 steps)"  # √((9 + 1 + 16) / 2) = √13
    )
    assert found["nystrom"]["image accuracy, %"] == NOTHING
    assert found["softmax"]["listops accuracy, %"] == "— (4,000; 0 of 12,000 steps)"
    assert found["softmax"]["image accuracy, %"] == "12.00 (1, 1 at a floor)"


@pytest.mark.parametrize(
    ("metric", "value", "floor", "cells"),
    [
        ("f1", 0.884, 0.5, {"text f1, %": ["50.00", "88.40 (1)"]}),
        ("nll", 2.006, 3.3, {"text nll": ["3.30", "2.01 (1)"]}),
    ],
)
def test_another_metric_has_a_column_in_its_unit(runs, metric, value, floor, cells):
    found = {f"{split}_{metric}": value for split in ("validation", "test")}
    result = {"metric": metric, "floors": {"unigram": floor}, **found}
    runs.finished("one", result=result, task="text")
    table = score_table(frame(runs)).drop(columns="attention")
    assert table.to_dict("list") == cells


def test_the_share_that_is_exact_by_construction_stands_in_the_cell(runs):
    runs.finished("usual", result={"fraction_exact": 0.834})
    runs.finished("identity", arg="softmax,quick", result={"fraction_exact": 0})
    found = {name: row["listops accuracy, %"] for name, row in scores(runs).items()}
    assert found["nystrom"] == "50.00 (1, exact for 83.4%)"
    assert found["softmax"] == "50.00 (1)"


def test_each_of_our_cells_of_a_task_points_to_its_remark(runs):
    finish_three(runs)
    runs.finished("image", 0.4, task="image")
    remarks = {"retrieval": "another split", "image": "JPEG"}
    found = scores(runs, remarks)
    assert found["nystrom"]["image accuracy, %"] == "40.00 (1) [b]"
    assert found["nystrom"]["listops accuracy, %"] == "53.00 ± 3.61 (3)"
    assert found["floor: majority class"]["image accuracy, %"] == "12.00 [b]"
    rows = {row["task"]: row["remark"] for row in score_rows(frame(runs), remarks)}
    assert rows == {"image": "JPEG", "listops": None}


def test_published_numbers_stand_in_columns_apart_beside_the_paper_preset(runs):
    runs.finished("quick")
    runs.finished("paper", arg="nystrom")
    runs.finished("64", arg="nystrom", attention__num_landmarks=64)
    runs.finished("shorter", arg="softmax", train__num_steps=4000)
    runs.finished("identity", arg="identity")
    table = score_table(frame(runs))
    assert list(table)[1:] == ["listops accuracy, %", "listops published, %"]
    found = {name: row[list(table)[-1]] for name, row in cells(table).items()}
    theirs = "37.15 [1], 38.51 [2], 36.29 [3]"
    assert {name for name, text in found.items() if text == theirs} == {
        f"nystrom, paper preset, {n} landmarks, 5,000 steps" for n in (64, 128)
    }
    assert {*found.values()} == {theirs, NOTHING}
    cited = [row["published: a re-run"] for row in score_rows(frame(runs))]
    assert [x for x in cited if x] == [38.51, 38.51]


def test_floors_stand_first_and_belong_to_their_data(runs):
    runs.finished("short")
    runs.finished("long", task__max_length=128, result={"floors": {"root": 0.3333}})
    assert score_table(frame(runs)).to_numpy()[:3].tolist() == [
        ["floor: majority class, length 48", "12.00"],
        ["floor: root operator, length 48", "25.00"],
        ["floor: root, length 128", "33.33"],
    ]


def test_the_average_needs_all_five_tasks(runs):
    for task, accuracy in zip(LRA[:-1], (0.1, 0.2, 0.3, 0.4), strict=True):
        for name in ("softmax", "identity"):
            runs.finished(f"{task}-{name}", accuracy, task=task, arg=name)
    assert "average accuracy, %" not in score_table(frame(runs))
    for seed, accuracy in enumerate((0.5, 0.7)):
        changes = {"task": "pathfinder", "arg": "softmax", "seed": seed}
        runs.finished(f"last{seed}", accuracy, **changes)
    runs.unfinished("last-2", task="pathfinder", arg="identity")
    found = scores(runs, {"image": "JPEG"})
    # (10 + 20 + 30 + 40 + 60) / 5
    assert found["softmax"]["average accuracy, %"] == "32.00 [a]"
    assert found["softmax"]["average published, %"] == "58.77 [1]"
    assert found["identity"]["average accuracy, %"] == NOTHING


def test_costs_of_two_devices_have_no_mean(runs):
    costs = {"examples_per_second": 400.0, "compiled_bytes": 3 * 2**20}
    runs.finished("a", seed=0, result=costs)
    runs.finished("b", seed=1, result={**costs, "examples_per_second": 600.0})
    runs.finished("c", seed=2, result={"device": "a GPU", "peak_bytes": 2**30})
    found = cost_table(frame(runs)).set_index("device").to_dict("index")
    kept = ["training, examples/s", "compiled, MiB", "peak, MiB"]
    assert {name: [row[x] for x in kept] for name, row in found.items()} == {
        "CPU x86_64, 2 cores": ["500.0 ± 141.4", "3.0 ± 0.0", NOTHING],
        "a GPU": ["500.0", NOTHING, "1,024.0"],
    }


def test_what_all_rows_share_is_said_once(runs):
    for landmarks in (8, 24):
        changes = {"attention__num_landmarks": landmarks, "train__batch_size": 8}
        runs.finished(f"{landmarks}", **changes)
    assert shared(frame(runs)) == ["quick preset", "batch 8", "CPU x86_64, 2 cores"]
    table = cost_table(frame(runs))
    assert list(table) == ["attention", "parameters", "training, examples/s"]
    assert list(table["attention"]) == ["nystrom, 8 landmarks", "nystrom, 24 landmarks"]


def test_the_files_of_numbers_say_what_a_reader_needs_to_make_them_again(runs):
    finish_three(runs)
    begun = runs.unfinished("more", seed=3, steps=(500,))
    (begun / "failed.json").write_text('{"error": "error: no\\ndata"}')
    (row,) = score_rows(frame(runs))
    assert [row[key] for key in ("mean", "standard_deviation", "seeds")] == [
        *("53.00", "3.61", 3)
    ]
    assert row["unfinished"] == "500 of 12,000 steps"
    assert row["floors"] == "majority class 12.00; root operator 25.00"
    _, found, _, begun = (details(x, ["accuracy"]) for _, x in frame(runs).iterrows())
    assert "--config.train.seed=1 '--workdir=runs/{}-1'" in found["command"]
    assert (found["test_accuracy"], found["wall_seconds"]) == ("52.00", "350.3")
    assert (found["versions"], found["failed"]) == ("python 3.11.7, jax 0.10.2", None)
    assert (found["commit"], found["test_data_sha256"]) == ("c" * 40, "a" * 64)
    assert found.keys() == begun.keys()
    assert (begun["steps"], begun["failed"]) == ("500 of 12000", "error: no data")
    assert begun["test_accuracy"] is begun["wall_seconds"] is None
    cell = "53.00 ± 3.61 (3 of 4, 1 failed, 500 of 12,000 steps)"
    assert scores(runs)["nystrom"]["listops accuracy, %"] == cell


def test_pairs_are_differences_of_the_same_seeds(runs):
    finish_three(runs)
    for seed, accuracy in ((0, 0.51), (2, 0.61), (7, 0.99)):
        runs.finished(
            f"{seed}", accuracy, seed=seed, attention__landmark_padding="padded"
        )
    runs.finished("other", 0.9, attention__pinv="identity")
    assert paired_table(frame(runs)).to_numpy().tolist() == [
        [
            "nystrom, landmark_padding count",
            "landmark_padding mask",
            "2.50 ± 2.12 (2)",
        ]  # 1 and 4
    ]


def test_pre_trained_runs_are_compared_with_every_length_from_scratch(runs):
    for seed in (0, 1):
        source = {"train__init_from": f"/x/pre-seed{seed}"}
        kinds = {0.5: {}, 0.55: {"train__num_steps": 24_000}, 0.65 + seed / 50: source}
        for accuracy, changes in kinds.items():
            runs.finished(f"{accuracy}-{seed}", accuracy, seed=seed, **changes)
    rows = paired_table(frame(runs)).to_numpy().tolist()
    assert rows == [
        ["nystrom, 12,000 steps, from pre-seed*", *rest]
        for rest in (
            ["from scratch, 12,000 steps", "16.00 ± 1.41 (2)"],
            ["from scratch, 24,000 steps", "11.00 ± 1.41 (2)"],
        )
    ] + [["nystrom, 24,000 steps, from scratch", "12,000 steps", "5.00 ± 0.00 (2)"]]


def test_rates_beside_the_selected_metric_stand_beside_their_floors(runs):
    """As of hidden tokens the order of the parts."""
    beside = {
        "metric": "mlm_accuracy",
        **{f"{split}_mlm_accuracy": 0.25 for split in ("validation", "test")},
        "test_sop_accuracy": 0.625,
        "test_mlm_loss": 3.0,
        "other_floors": {"sop_accuracy": {"majority class": 0.5}, "mlm_loss": {"x": 4}},
    }
    runs.finished("one", result=beside)
    found = scores(runs)
    assert found["nystrom"]["listops sop accuracy, %"] == "62.50 (1)"
    assert found["floor: majority class"]["listops sop accuracy, %"] == "50.00"
    (row,) = (details(x, ["mlm_accuracy"]) for _, x in frame(runs).iterrows())
    assert (row["test_sop_accuracy"], row["test_mlm_loss"]) == ("62.50", "3.00")
