"""Cells and CSV values, computed by hand."""

import csv
import io

import pytest

from nystromformer.lab.report.points import group
from nystromformer.lab.report.runs import read_runs
from nystromformer.lab.report.tables import (
    NOTHING,
    Table,
    accuracy_rows,
    accuracy_table,
    cost_table,
    details,
    to_csv,
)

LRA = ("listops", "text", "retrieval", "image", "pathfinder")


def points(runs):
    return group(read_runs([runs.folder]))


def cells(table):
    """Row name -> column name -> text."""
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def finish_three(runs, **config):
    for seed, accuracy in enumerate([0.50, 0.52, 0.57]):
        runs.finished(f"{config}-{seed}", accuracy, seed=seed, **config)


def test_a_cell_is_mean_and_sample_standard_deviation_over_seeds(runs):
    finish_three(runs)
    assert cells(accuracy_table(points(runs)))["nystrom"]["listops"] == (
        "53.00 ± 3.61 (3)"  # √((9 + 1 + 16) / 2) = √13
    )


def test_one_seed_has_no_deviation(runs):
    runs.finished("one", 0.1234)
    found = cells(accuracy_table(points(runs)))["nystrom"]["listops"]
    assert found == "12.34 (1, 1 at a floor)"


def test_an_incomplete_sweep_gives_a_partial_table(runs):
    finish_three(runs)
    runs.unfinished("more", seed=3, steps=(500,))
    runs.unfinished("softmax-0", arg="softmax,quick", steps=(1000, 4000))
    runs.unfinished("softmax-1", arg="softmax,quick", seed=1, steps=())
    runs.finished("image", 0.4, arg="softmax,quick", task="image")
    found = cells(accuracy_table(points(runs)))
    assert found["nystrom"]["listops"] == "53.00 ± 3.61 (3 of 4, 500 of 5,000 steps)"
    assert found["nystrom"]["image"] == NOTHING
    assert found["softmax"]["listops"] == "— (4,000; 0 of 5,000 steps)"
    assert found["softmax"]["image"] == "40.00 (1)"


def test_each_of_our_cells_of_a_task_points_to_its_remark(runs):
    finish_three(runs)
    runs.finished("image", 0.4, task="image")
    remarks = {"retrieval": "another split", "image": "JPEG"}
    found = cells(accuracy_table(points(runs), remarks))["nystrom"]
    assert found["image"] == "40.00 (1) [b]"
    assert found["listops"] == "53.00 ± 3.61 (3)"
    floors = cells(accuracy_table(points(runs), remarks))["floor: majority class"]
    assert (floors["image"][-4:], floors["listops"]) == (" [b]", "12.00")
    rows = {row["task"]: row["remark"] for row in accuracy_rows(points(runs), remarks)}
    assert rows == {"image": "JPEG", "listops": None}


def test_what_has_failed_is_counted_and_says_why(runs):
    runs.finished("a", 0.5)
    failed = runs.unfinished("b", seed=1)
    runs.unfinished("c", seed=2)
    for workdir in (
        runs.folder / "a",
        failed,
    ):  # the first was tried again and finished
        (workdir / "failed.json").write_text('{"error": "error: no\\ndata"}')
    assert cells(accuracy_table(points(runs)))["nystrom"]["listops"] == (
        "50.00 (1 of 3, 1 failed, 50; 50 of 5,000 steps)"
    )
    said = [details(run)["failed"] for run in read_runs([runs.folder])]
    assert said == [None, "error: no data", None]


def test_published_numbers_stand_beside_every_variant(runs):
    for landmarks in (16, 64):
        runs.finished(f"{landmarks}", attention__num_landmarks=landmarks)
    runs.finished("softmax", arg="softmax,quick")
    runs.finished("none", arg="none,quick")
    found = cells(accuracy_table(points(runs)))
    for label in ("nystrom, 16 landmarks", "nystrom, 64 landmarks"):
        published = found[label]["listops, published"]
        assert published == "37.15 [1], 38.51 [2], 36.29 [3]"
    assert found["softmax"]["listops, published"] == "37.10 [1]"
    assert found["none"]["listops, published"] == NOTHING


def test_floors_stand_first_and_belong_to_their_data(runs):
    runs.finished("short")
    runs.finished("long", task__max_length=128, result={"floors": {"root": 0.3333}})
    table = accuracy_table(points(runs))
    assert [row[:2] for row in table.rows[:3]] == [
        ["floor: majority class, length 64", "12.00"],
        ["floor: root operator, length 64", "25.00"],
        ["floor: root, length 128", "33.33"],
    ]


def test_the_average_needs_all_five_tasks(runs):
    for task, accuracy in zip(LRA[:-1], (0.1, 0.2, 0.3, 0.4), strict=True):
        for name in ("softmax", "none"):
            arg = f"{name},quick"
            runs.finished(f"{task}-{name}", accuracy, task=task, arg=arg)
    assert "average" not in accuracy_table(points(runs)).header
    runs.finished("last-0", 0.5, task="pathfinder", arg="softmax,quick")
    runs.finished("last-1", 0.7, task="pathfinder", arg="softmax,quick", seed=1)
    runs.unfinished("last-2", task="pathfinder", arg="none,quick")
    found = cells(accuracy_table(points(runs)))
    assert found["softmax"]["average"] == "32.00"  # (10 + 20 + 30 + 40 + 60) / 5
    assert found["softmax"]["average, published"] == "58.77 [1]"
    assert found["none"]["average"] == NOTHING


def test_the_csv_has_the_numbers_by_themselves(runs):
    finish_three(runs)
    runs.unfinished("more", seed=3, steps=(500,))
    runs.unfinished("softmax", arg="softmax,quick", steps=(750,))
    text = to_csv(accuracy_rows(points(runs)))
    ours, softmax = csv.DictReader(io.StringIO(text))
    assert ours == {
        "task": "listops",
        "attention": "nystrom",
        "variant": "nystrom",
        "settings": "quick preset",
        "test_accuracy": "53.00",
        "standard_deviation": "3.61",
        "seeds": "3",
        "seeds_at_a_floor": "0",
        "unfinished": "500 of 5,000 steps",
        "floors": "majority class 12.00%; root operator 25.00%",
        "remark": "",
        "published: Xiong et al. 2021": "37.15",
        "published: a re-run": "38.51",
        "published: another re-run": "36.29",
    }
    assert softmax["test_accuracy"] == softmax["standard_deviation"] == ""
    assert softmax["seeds"] == "0"
    assert softmax["unfinished"] == "750 of 5,000 steps"
    assert softmax["published: a re-run"] == ""


def test_costs_of_two_devices_have_no_mean(runs):
    costs = {"examples_per_second": 400.0, "compiled_bytes": 3 * 2**20}
    runs.finished("a", seed=0, result=costs)
    runs.finished("b", seed=1, result={**costs, "examples_per_second": 600.0})
    runs.finished("c", seed=2, result={"device": "a GPU", "peak_bytes": 2**30})
    header, rows = cost_table(points(runs))
    assert header[3:] == ["examples/s", "compiled, MiB", "peak, MiB", "device"]
    assert [row[3:] for row in rows] == [
        ["500.0 ± 141.4", "3.0 ± 0.0", NOTHING, "CPU x86_64, 2 cores"],
        ["500.0", NOTHING, "1,024.0", "a GPU"],
    ]


def test_an_unfinished_point_has_settings_and_no_costs(runs):
    runs.unfinished("a", attention__num_landmarks=24, seed=5)
    (row,) = cost_table(points(runs)).rows
    assert row == ["nystrom", "quick preset, 24 landmarks", *[NOTHING] * 5]


def test_details_are_what_a_reader_needs_to_make_the_run_again(runs):
    runs.finished("a", 0.5695, seed=1)
    (run,) = read_runs([runs.folder])
    found = details(run)
    assert found["command"].endswith("--config.train.seed=1 --workdir=runs/a")
    assert found["test_accuracy"] == "56.95"
    assert found["steps"] == "5000 of 5000"
    assert found["wall_seconds"] == "350.3"
    assert found["versions"] == "python 3.11.7, jax 0.10.2"
    assert found["commit"] == "c" * 40
    assert found["test_data_sha256"] == "a" * 64


def test_details_of_an_unfinished_run_have_the_same_keys(runs):
    runs.finished("a")
    runs.unfinished("b", seed=1, steps=(50, 100))
    whole, begun = (details(run) for run in read_runs([runs.folder]))
    assert whole.keys() == begun.keys()
    assert begun["steps"] == "100 of 5000"
    assert begun["test_accuracy"] is begun["wall_seconds"] is None


@pytest.mark.parametrize(
    ("cell", "text"),
    [("a|b", r"a\|b"), ("*_`<", r"\*\_\`\<"), ("two\nlines", "two lines")],
)
def test_markdown_reads_no_markup_in_a_cell(cell, text):
    table = Table(["name", "value"], [[cell, "1"]])
    assert table.markdown() == f"| name | value |\n| --- | ---: |\n| {text} | 1 |\n"
