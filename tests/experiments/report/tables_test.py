"""The numbers of the tables, computed by hand."""

import json

import pytest

from lra_tasks import LRA
from nystromformer.experiments.report.published import AVERAGE, SCORES, cite
from nystromformer.experiments.report.tables import (
    DASH,
    cost_table,
    format_difference,
    paired_table,
    score_table,
)

COLUMN = "listops accuracy, %"


def scores(runs):
    """Row name -> column name -> text."""
    return score_table(runs.read()).set_index("attention").to_dict("index")


def test_score_table_has_means_deviations_seeds_and_floors(three):
    three.add("nystrom,quick", 0.56, seed=2)
    three.add("softmax,quick", 0.12, task="image")
    found = scores(three)
    assert found["nystrom"] == {COLUMN: "53.00 ± 3.00 (3)", "image accuracy, %": DASH}
    assert found["softmax"]["image accuracy, %"] == "12.00 (1)"
    assert found["floor: root operator"][COLUMN] == "25.00"
    assert [*found][:2] == ["floor: majority class", "floor: root operator"]


def test_score_table_says_how_far_unfinished_runs_are(runs):
    steps = {"train__num_steps": 5000}
    runs.add("nystrom,quick", steps=(500,), **steps)
    runs.add("nystrom,quick", 0.5, seed=1, **steps)
    runs.add("nystrom,quick", seed=2, steps=(), **steps)
    runs.add("softmax,quick", steps=(700,), **steps)
    found = scores(runs)
    assert found["nystrom"][COLUMN] == "50.00 (1 of 3; 500, 0 of 5,000 steps)"
    assert found["softmax"][COLUMN] == "— (0 of 1; 700 of 5,000 steps)"
    assert found["floor: root operator"][COLUMN] == "25.00"


def test_score_table_shows_a_metric_that_is_no_rate_as_it_is(runs):
    found = {"metric": "nll", "test_nll": 2.006, "floors": {"rule": 0.5}}
    runs.add("nystrom,quick", 0.1, result=found)
    assert [row["listops nll"] for row in scores(runs).values()] == ["0.50", "2.01 (1)"]


def test_score_table_shows_other_rates_beside_the_selected_one(runs):
    floors = {"sop_accuracy": {"majority class": 0.4959}, "sop_loss": {"x": 1.0}}
    found = {"test_sop_accuracy": 0.7831, "test_sop_loss": 0.4, "other_floors": floors}
    runs.add("nystrom,quick", 0.12, result=found)
    rows = scores(runs)
    assert rows["nystrom"]["listops sop accuracy, %"] == "78.31 (1)"
    assert rows["floor: majority class"]["listops sop accuracy, %"] == "49.59"
    assert [*rows["nystrom"]] == [COLUMN, "listops sop accuracy, %"]


def test_score_table_has_a_column_for_each_option_of_the_task(runs):
    for length, floor in ((500, 0.3), (900, 0.4)):
        floors = {"floors": {"rule": floor}}
        runs.add("nystrom,quick", floor + 0.1, result=floors, task__max_length=length)
    runs.add("softmax,quick", 0.8, result={"floors": {}}, task__max_length=900)
    short = "listops accuracy, % (max_length 500)"
    long = "listops accuracy, % (max_length 900)"
    assert scores(runs) == {
        "floor: rule": {short: "30.00", long: "40.00"},
        "nystrom": {short: "40.00 (1)", long: "50.00 (1)"},
        "softmax": {short: DASH, long: "80.00 (1)"},
    }


def test_score_table_has_a_floor_for_each_preset(runs):
    runs.add("nystrom", 0.5, result={"floors": {"rule": 0.3}})
    runs.add("nystrom,quick", 0.5, result={"floors": {"rule": 0.4}})
    floors = {
        name: row[COLUMN] for name, row in scores(runs).items() if "floor" in name
    }
    assert floors == {
        "floor: rule, paper preset": "30.00",
        "floor: rule, quick preset": "40.00",
    }


def test_score_table_averages_rows_that_have_all_tasks(runs):
    for arg in ("nystrom", "bigbird,quick"):
        for index, task in enumerate(LRA):
            runs.add(arg, 0.1 * (index + 2), task=task)
    runs.add("softmax", 0.9)
    found, names = scores(runs), ("average accuracy, %", "average published, %")
    rows = ("nystrom, paper preset", "bigbird, quick preset", "softmax, paper preset")
    assert [[found[row][name] for name in names] for row in rows] == [
        ["40.00", "58.95 [1], 58.93 [2], 57.61 [3]"],  # of 20, 30, 40, 50 and 60
        ["40.00", DASH],
        [DASH, DASH],
    ]


@pytest.mark.parametrize(
    ("arg", "changes", "cited"),
    [
        ("linformer", {}, "37.25 [1], 37.45 [2], 36.69 [3]"),
        ("reformer,as_published", {}, "19.05 [1], 37.68 [2]"),
        ("bigbird", {"task__source_dir": "x", "train__length_buckets": 8}, "39.25 [2]"),
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
    source = {"train__init_from": "runs/bert"}
    steps = {"train__num_steps": 2_812}  # counted from the preset's epochs
    runs.add("nystrom,subwords", 0.9, task="text", **source, **steps)
    runs.add("nystrom,subwords", 0.8, task="text", seed=1)
    mismatched = {
        "test_mismatched_accuracy": 0.7,
        "other_floors": {"mismatched_accuracy": {"majority class": 0.35}},
    }
    runs.add("softmax,mnli", 0.8, task="glue", result=mismatched, **source)
    cells = {x: y for row in scores(runs).values() for x, y in row.items() if y != DASH}
    published = {x: y for x, y in cells.items() if "published" in x}
    assert published == {
        "text published, %": "93.20 [1]",
        "mnli published, %": "82.40 [1]",
        "mnli mismatched published, %": "82.40 [1]",
    }
    assert cells["mnli mismatched accuracy, %"] == "70.00 (1)"


# Table 2 of the paper and of its supplement: SST-2, MRPC, QNLI, QQP, MNLI, IMDb.
TABLE2 = {
    "softmax": ("90.0", "88.4", "90.3", "87.3", "82.4", "82.4", "93.3"),
    "nystrom": ("91.4", "88.1", "88.7", "86.3", "80.9", "82.2", "93.2"),
    "nystrom,seq1024": ("91.4", "87.5", "88.7", "86.3", "80.9", "81.4", "93.0"),
}
TABLE2_TASKS = ("", "mrpc", "qnli", "qqp", "mnli", "mnli mismatched", "subwords")


@pytest.mark.parametrize("row", TABLE2)
@pytest.mark.parametrize("task", TABLE2_TASKS)
def test_cite_has_each_cell_of_table_2(runs, row, task):
    attention, _, longer = row.partition(",")
    words = [attention, task.removesuffix(" mismatched"), longer]
    arg = ",".join(word for word in words if word)
    name = "text" if task == "subwords" else "glue"
    runs.add(arg, 0.8, task=name, train__init_from="runs/bert")
    [run] = [run for _, run in runs.read().iterrows()]
    cell = TABLE2[row][TABLE2_TASKS.index(task)]
    assert cite(run, task if "mis" in task else run["task"]) == f"{float(cell):.2f} [1]"


def test_score_table_goes_by_the_settings_and_not_by_what_a_config_says(runs):
    """A file of one's own may be called configs/listops.py, and its preset "paper"."""
    workdir = runs.add("linformer", 0.5, result={"command": "--config=mine.py"})
    assert "37.25 [1]" in scores(runs)["linformer"]["listops published, %"]
    config = json.loads((workdir / "config.json").read_text())
    config["optimizer"]["learning_rate"] = 3e-4
    (workdir / "config.json").write_text(json.dumps(config))
    assert "listops published, %" not in scores(runs)["linformer"]
    config["preset"] = "subwords"  # which configs/listops.py does not have
    config["train"]["init_from"] = "runs/a"
    (workdir / "config.json").write_text(json.dumps(config))
    assert "listops published, %" not in scores(runs)["linformer"]


def test_paired_table_takes_runs_of_equal_test_data(runs):
    for arg in ("nystrom", "softmax", "linear,quick", "softmax,quick"):
        runs.add(arg, 0.5, result={"data_sha256": {"test": arg[-5:] == "quick"}})
    assert [x.count("quick") for x in paired_table(runs.read())["difference"]] == [0, 2]


def test_published_averages_are_those_of_the_cells():
    scores = SCORES[SCORES[AVERAGE].notna()]
    assert len(scores) == 15
    means = scores[[*LRA]].mean(axis=1)
    assert list(means) == pytest.approx(list(scores[AVERAGE]), abs=0.05)


def test_cost_table_averages_seeds_of_one_device(three):
    half = {"examples_per_second": 503.0, "fraction_exact": 0.5}
    three.add("nystrom,quick", 0.5, seed=2, result=half)
    other = {"device": "1 × H200", "examples_per_second": 9e4, "compiled_bytes": 2**31}
    three.add("nystrom,quick", 0.5, seed=3, result=other)
    costs = cost_table(three.read())[:2]
    assert {name: list(costs[name]) for name in costs} == {
        "attention": ["nystrom", "nystrom"],
        "parameters": ["81,942", "81,942"],
        "training, examples/s": ["501.0 ± 1.7", "90,000.0"],  # 500, 500 and 503
        "compiled, MiB": ["3.0", "2,048.0"],
        "exact by length, %": ["16.7 ± 28.9", "0.0"],
        "device": ["CPU, 2 cores", "1 × H200"],
    }


def test_format_difference_has_the_paired_t_interval_of_common_seeds(runs):
    for seed, (ours, theirs) in enumerate([(0.51, 0.50), (0.54, 0.50), (0.58, 0.54)]):
        runs.add("nystrom,quick", ours, seed=seed)
        runs.add("softmax,quick", theirs, seed=seed)
    runs.add("nystrom,quick", 0.9, seed=9)
    of = dict(list(runs.read().groupby("attention")))
    # Differences 1, 4 and 4: mean 3, deviation √3; t of 2 degrees of freedom is 4.3027.
    found = format_difference(of["nystrom"], of["softmax"])
    assert found == "+3.00 ± 4.30 (3), within chance"
    # Of one seed: 200 √(variance / 2000), the binomial one of 2,000 test examples.
    # The variance is 0.51 · 0.49 + 0.50 · 0.50.
    found = format_difference(of["nystrom"][:1], of["softmax"])
    assert found == "+1.00 ± 3.16 (1), within test noise"


def test_paired_table_judges_against_the_rows_of_most_seeds(runs):
    for test, longer, seed in ((0.50, 1000, 0), (0.52, 2000, 0), (0.52, 2000, 1)):
        runs.add("nystrom,quick", test, train__num_steps=longer, seed=seed)
    runs.add("softmax,quick", 0.56)
    (_, names), (_, cells) = paired_table(runs.read()).items()
    short, long = "nystrom, 1000 steps", "nystrom, 2000 steps"
    assert dict(zip(names, cells, strict=True)) == {
        f"{short} − softmax": "-6.00 ± 3.15 (1), exceeds test noise",
        f"{long} − softmax": "-4.00 ± 3.15 (1), exceeds test noise",
        f"{short} − {long}": "-2.00 ± 3.16 (1), within test noise",
    }


def test_paired_table_has_a_column_for_each_task(three):
    for arg, test, nll in (("nystrom,quick", 0.3, 2.0), ("softmax,quick", 0.4, 2.5)):
        three.add(arg, test, task="image")
        three.add(arg, test, task="text", result={"metric": "nll", "test_nll": nll})
        three.add(arg, test, task="glue", result={"metric": "f1", "test_f1": test})
    (row,) = paired_table(three.read()).to_dict("records")
    assert row["difference"] == "nystrom − softmax"
    assert row["listops accuracy, points"] == "+6.00 ± 3.16 (1), exceeds test noise"
    assert row["image accuracy, points"] == "-10.00 ± 3.00 (1), exceeds test noise"
    assert row["text nll"] == "-0.50 (1)"  # no mean over examples, nor is the next
    assert row["sst2 f1, points"] == "-10.00 (1)"
