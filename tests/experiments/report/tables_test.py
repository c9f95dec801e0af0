"""The numbers of the tables, computed by hand."""

import math

import pytest

from lra_tasks.task import LRA
from nystromformer.experiments.report.published import SCORES, published
from nystromformer.experiments.report.tables import (
    DASH,
    cost_table,
    difference,
    paired_table,
    score_rows,
    score_table,
    shared,
)


def scores(runs):
    """Row name -> column name -> text."""
    table = score_table(score_rows(runs.read()))
    return table.set_index("attention").to_dict("index")


def pairs(runs):
    return paired_table(runs.read()).set_index("difference").to_dict("index")


def test_score_table_has_means_deviations_seeds_and_floors(three):
    three.add("nystrom-2", 0.56, seed=2)
    three.add("image", 0.12, arg="softmax,quick", task="image")
    found = scores(three)
    assert found["nystrom"]["listops accuracy, %"] == "53.00 ± 3.00 (3)"
    assert found["nystrom"]["image accuracy, %"] == DASH
    assert found["softmax"]["image accuracy, %"] == "12.00 (1, 1 at a floor)"
    assert found["floor: root operator"]["listops accuracy, %"] == "25.00"
    assert [*found][:2] == ["floor: majority class", "floor: root operator"]


def test_score_table_says_how_far_unfinished_runs_are(runs):
    steps = {"train__num_steps": 5000}
    runs.add("a", 0.5, result={"fraction_exact": 0.25}, **steps)
    runs.add("b", seed=1, steps=(500,), **steps)
    workdir = runs.add("c", seed=2, steps=(), **steps)
    (workdir / "failed.txt").write_text("status 1: out of memory")
    assert scores(runs)["nystrom"]["listops accuracy, %"] == (
        "50.00 (1 of 3, exact for 25.0%, 1 failed, 500; 0 of 5,000 steps)"
    )


def test_score_table_says_so_where_nothing_is_finished(runs):
    runs.add("a", steps=(500,), train__num_steps=5000)
    found = scores(runs)
    assert found == {"nystrom": {"listops accuracy, %": "— (500 of 5,000 steps)"}}


@pytest.mark.parametrize(
    ("metric", "value", "column", "cells"),
    [
        ("f1", 0.884, "listops f1, %", ["50.00", "88.40 (1)"]),
        ("nll", 2.006, "listops nll", ["0.50", "2.01 (1, 1 at a floor)"]),
    ],
)
def test_score_table_shows_each_metric_in_its_unit(runs, metric, value, column, cells):
    found = {"metric": metric, f"test_{metric}": value, "floors": {"rule": 0.5}}
    runs.add("a", 0.1, result=found)
    assert [row[column] for row in scores(runs).values()] == cells


def test_score_table_shows_other_rates_beside_the_selected_one(runs):
    found = {"test_sop_accuracy": 0.7831, "test_sop_loss": 0.4}
    floors = {"sop_accuracy": {"majority class": 0.4959}, "sop_loss": {"x": 1.0}}
    runs.add("a", 0.5, result={**found, "other_floors": floors})
    rows = scores(runs)
    assert rows["nystrom"]["listops sop accuracy, %"] == "78.31 (1)"
    assert rows["floor: majority class"]["listops sop accuracy, %"] == "49.59"
    assert "listops sop loss" not in rows["nystrom"]


def test_score_table_tells_floors_of_different_data_apart(runs):
    runs.add("a", 0.5, task__max_length=500)
    runs.add("b", 0.5, task__max_length=900, result={"floors": {"rule": 0.3}})
    runs.add("c", 0.5, arg="softmax,quick", result={"floors": {"rule": 0.4}})
    column = "listops accuracy, %"
    found = {name: row[column] for name, row in scores(runs).items() if "rule" in name}
    assert found == {"floor: rule, max_length 900": "30.00", "floor: rule": "40.00"}


def add_all(runs, **config):
    for index, task in enumerate(LRA):
        runs.add(f"{task}-{config}", 0.1 * (index + 2), task=task, **config)


def test_score_table_averages_rows_that_have_all_tasks(runs):
    add_all(runs, arg="nystrom")
    add_all(runs, arg="bigbird,quick")
    runs.add("listops", 0.9, arg="softmax")
    found = scores(runs)
    row = found["nystrom, paper preset"]
    assert row["average accuracy, %"] == "40.00"  # of 20, 30, 40, 50 and 60
    assert row["average published, %"] == "58.95 [1], 58.93 [2], 57.61 [3]"
    quick = found["bigbird, quick preset"]
    assert quick["average accuracy, %"] == "40.00"
    assert quick["average published, %"] == DASH
    assert found["softmax, paper preset"]["average accuracy, %"] == DASH


@pytest.mark.parametrize(
    ("config", "cited"),
    [
        ({"arg": "linformer"}, "37.25 [1], 37.45 [2], 36.69 [3]"),
        ({"arg": "reformer,as_published"}, "19.05 [1], 37.68 [2]"),
        ({"arg": "softmax,quick"}, None),
        ({"arg": "identity"}, None),
        ({"arg": "softmax", "train__init_from": "runs/a"}, None),
        (
            {"arg": "softmax", "command": "'--config.train.length_buckets=8'"},
            "37.10 [1], 38.37 [2], 37.50 [3]",
        ),
        ({"arg": "softmax", "command": "--config.train.num_steps=20"}, None),
    ],
)
def test_score_table_cites_beside_the_published_settings_only(runs, config, cited):
    runs.add("a", 0.5, **config)
    (row,) = [row for name, row in scores(runs).items() if "floor" not in name]
    assert row.get("listops published, %") == cited


def test_published_averages_are_those_of_the_cells():
    for (_, source), (*cells, average) in SCORES.items():
        assert sum(cells) / 5 == pytest.approx(average, abs=0.05), source
    assert published("nystrom", "mrpc") == {"Xiong et al. 2021": 88.1}
    assert published("nystrom", "pathx") == {}


def test_shared_has_what_all_commands_change_and_one_device(runs):
    flags = "--config.train.eval_every=25 --config.task.data_dir=/d"
    runs.add("a", 0.5, command=flags, train__eval_every=25)
    more = {"train__eval_every": 25, "train__batch_size": 8}
    flags += " --config.train.batch_size=8"
    runs.add("b", 0.5, arg="softmax,quick", command=flags, **more)
    runs.add("c", arg="linear,quick")
    made_by = ["CPU x86_64, 2 cores", "c" * 40]
    assert shared(runs.read()) == ["quick preset", "eval_every 25", *made_by]
    _, softmax = cost_table(runs.read()).to_dict("records")
    assert softmax["settings"] == "batch_size 8"


def test_cost_table_averages_seeds_of_one_device(three):
    three.add("nystrom-2", 0.5, seed=2, result={"examples_per_second": 503.0})
    other = {"device": "1 × H200", "examples_per_second": 9e4, "peak_bytes": 2**31}
    three.add("nystrom-3", 0.5, seed=3, result=other)
    cpu, gpu, _ = cost_table(three.read()).to_dict("records")
    assert cpu["training, examples/s"] == "501.0 ± 1.7"  # 500, 500, 503
    assert gpu["training, examples/s"] == "90,000.0"
    assert [cpu["compiled, MiB"], cpu["parameters"]] == ["3.0 ± 0.0", "81,942"]
    assert [cpu["peak, MiB"], gpu["peak, MiB"]] == [DASH, "2,048.0"]
    assert [cpu["device"], gpu["device"]] == ["CPU x86_64, 2 cores", "1 × H200"]


def test_difference_has_the_paired_t_interval_of_common_seeds(runs):
    for seed, (ours, theirs) in enumerate([(0.51, 0.50), (0.54, 0.50), (0.58, 0.54)]):
        runs.add(f"n{seed}", ours, seed=seed)
        runs.add(f"s{seed}", theirs, arg="softmax,quick", seed=seed)
    runs.add("n9", 0.9, seed=9)
    of = dict(list(runs.read().groupby("attention")))
    mean, bound, seeds = difference(of["nystrom"], of["softmax"])
    # Differences 1, 4 and 4: mean 3, deviation √3; t of 2 degrees of freedom is 4.3027.
    assert (mean, bound, seeds) == (
        pytest.approx(3),
        pytest.approx(4.3027, abs=1e-4),
        3,
    )


def test_difference_of_one_seed_has_the_bound_of_the_test_examples(three):
    of = dict(list(three.read().groupby("attention")))
    mean, bound, seeds = difference(of["nystrom"], of["softmax"])
    variance = (0.53 * 0.47 + 0.47 * 0.53) / 2000
    assert (mean, seeds) == (pytest.approx(6), 1)
    assert bound == pytest.approx(200 * math.sqrt(variance))


def test_paired_table_judges_against_the_first_row_and_the_attentions_own(runs):
    for name in ("nystrom", "softmax"):
        runs.add(f"{name}-a", 0.50, arg=f"{name},quick", train__num_steps=1000)
        more = 0.52 if name == "nystrom" else 0.56
        runs.add(f"{name}-b", more, arg=f"{name},quick", train__num_steps=2000)
    found = {name: row["listops accuracy, points"] for name, row in pairs(runs).items()}
    short, long = "1,000 steps", "2,000 steps"
    assert found == {
        f"nystrom, {long} − nystrom, {short}": "+2.00 ± 3.16 (1), within chance",
        f"softmax, {short} − nystrom, {short}": "+0.00 ± 3.16 (1), within chance",
        f"softmax, {long} − nystrom, {short}": "+6.00 ± 3.15 (1), exceeds chance",
        f"softmax, {long} − softmax, {short}": "+6.00 ± 3.15 (1), exceeds chance",
    }


def test_paired_table_has_a_column_for_each_task(three):
    for name, test in (("nystrom", 0.40), ("softmax", 0.30)):
        runs_arg = f"{name},quick"
        three.add(f"image-{name}", test, arg=runs_arg, task="image")
    loss = {"metric": "nll", "test_nll": 2.0}
    three.add("text-n", 0.5, task="text", result=loss)
    three.add(
        "text-s",
        0.5,
        arg="softmax,quick",
        task="text",
        result={**loss, "test_nll": 2.5},
    )
    (row,) = pairs(three).values()
    assert row["listops accuracy, points"] == "-6.00 ± 3.16 (1), exceeds chance"
    assert row["image accuracy, points"].startswith("-10.00 ± ")
    assert row["text nll"] == "+0.50 (1)"  # no rate: one seed says nothing
