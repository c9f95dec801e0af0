"""A published score stands beside a run of the same settings, and beside no other."""

import pytest

from nystromformer.experiments.report.published import cite
from nystromformer.experiments.report.tables import DASH
from tests.experiments.report.conftest import (
    SOFTMAX,
    delete_settings,
    scores,
    set_settings,
)
from tests.experiments.report.published_test import GLUE, lines_of


@pytest.mark.parametrize(
    ("arg", "changes", "cited"),
    [
        ("linformer", {}, "37.25 [1], 37.45 [2], 36.69 [3]"),
        ("reformer,as_published", {}, "19.05 [1], 37.68 [2]"),
        ("bigbird", {"task__source_dir": "x", "train__length_buckets": 8}, "39.25 [2]"),
        ("bigbird", {"model__dtype": "bfloat16"}, "39.25 [2]"),
        ("bigbird", {"train__num_steps": 2000}, None),
        ("bigbird", {"optimizer__cycle_b1": True}, None),
        ("nystrom", {"attention__num_landmarks": 16}, None),
        ("linformer", {"attention__projection_dim": 64}, None),
        ("softmax,quick", {}, None),
        ("softmax", {"train__init_from": "runs/a"}, None),
    ],
)
def test_score_table_cites_beside_published_settings(runs, arg, changes, cited):
    runs.add(arg, 0.5, **changes)
    *_, row = scores(runs).values()
    assert row.get("listops published, %") == cited


def test_score_table_cites_table_2_beside_fine_tuned_runs_only(runs):
    """The number of steps is counted from the preset's epochs."""
    runs.add(
        "nystrom,subwords",
        0.9,
        task="text",
        train__init_from="runs/bert",
        train__num_steps=2_812,
    )
    runs.add("nystrom,subwords", 0.8, task="text", seed=1)
    mismatched = {
        "test_mismatched_accuracy": 0.7,
        "other_floors": {"mismatched_accuracy": {"majority class": 0.35}},
    }
    runs.add(
        "softmax,mnli",
        0.8,
        task="glue",
        result=mismatched,
        train__init_from="runs/bert",
    )
    cells = {}
    for row in scores(runs).values():
        cells.update({name: cell for name, cell in row.items() if cell != DASH})
    published = {name: cell for name, cell in cells.items() if "published" in name}
    assert published == {
        "text published, %": "93.20 [1]",
        "mnli published, %": "82.40 [1]",
        "mnli mismatched published, %": "82.40 [1]",
    }
    assert cells["mnli mismatched accuracy, %"] == "70.00 (1)"


def test_score_table_cites_no_score_beside_an_older_run_of_another_setting(runs):
    """A Performer that is older than `redraw_features` has drawn its features once."""
    workdir = runs.add("performer,as_published", 0.5)
    assert "18.80 [1]" in scores(runs)["performer"]["listops published, %"]
    delete_settings(workdir, "attention.redraw_features")
    assert "listops published, %" not in scores(runs)["performer"]


def test_score_table_cites_beside_an_older_run_of_the_same_settings(runs):
    workdir = runs.add("softmax", 0.5)
    delete_settings(workdir, "attention.fused", "model.short_conv")
    assert "37.10 [1]" in scores(runs)[SOFTMAX]["listops published, %"]


# Table 2 of the paper and of its supplement: SST-2, MRPC, QNLI, QQP, MNLI, IMDb.
TABLE2 = {name: cells for name, *cells in lines_of(GLUE)}
TABLE2_TASKS = ("", "mrpc", "qnli", "qqp", "mnli", "mnli mismatched", "subwords")


@pytest.mark.parametrize("row", TABLE2)
@pytest.mark.parametrize("task", TABLE2_TASKS)
def test_cite_has_each_cell_of_table_2(runs, row, task):
    attention, _, preset = row.partition(",")
    arg_parts = [attention, task.removesuffix(" mismatched"), preset]
    arg = ",".join(part for part in arg_parts if part)
    config = "text" if task == "subwords" else "glue"
    runs.add(arg, 0.8, task=config, train__init_from="runs/bert")
    run = runs.read().iloc[0]
    cited_task = task if task == "mnli mismatched" else run["task"]
    percentage = float(TABLE2[row][TABLE2_TASKS.index(task)])
    assert cite(run, cited_task) == f"{percentage:.2f} [1]"


def test_score_table_goes_by_the_settings_and_not_by_what_a_config_says(runs):
    """A file of one's own may be called configs/listops.py, and its preset "paper"."""
    workdir = runs.add("linformer", 0.5, result={"command": "--config=mine.py"})
    assert "37.25 [1]" in scores(runs)["linformer"]["listops published, %"]
    set_settings(workdir, {"optimizer.learning_rate": 3e-4})
    assert "listops published, %" not in scores(runs)["linformer"]

    # configs/listops.py does not have this preset.
    set_settings(workdir, {"preset": "subwords", "train.init_from": "runs/a"})
    assert "listops published, %" not in scores(runs)["linformer"]
