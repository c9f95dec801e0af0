"""The numbers of the tables, computed by hand."""

import numpy as np
import pytest

from lra_tasks import LRA
from nystromformer.experiments.report.tables import (
    DASH,
    cost_table,
    format_difference,
    paired_table,
)
from nystromformer.training import checkpoint
from tests.experiments.report.conftest import DROPOUT, SOFTMAX, scores

COLUMN = "listops accuracy, %"


def test_score_table_has_means_deviations_seeds_and_floors(three):
    three.add("nystrom,quick", 0.56, seed=2)
    three.add("softmax,quick", 0.12, task="image")
    rows = scores(three)
    assert rows["nystrom"] == {COLUMN: "53.00 ± 3.00 (3)", "image accuracy, %": DASH}
    assert rows[SOFTMAX]["image accuracy, %"] == "12.00 (1)"
    assert rows["floor: root operator"][COLUMN] == "25.00"
    assert list(rows)[:2] == ["floor: majority class", "floor: root operator"]


def test_score_table_says_how_far_unfinished_runs_are(runs):
    runs.add("nystrom,quick", steps=(500,), train__num_steps=5000)
    runs.add("nystrom,quick", 0.5, seed=1, train__num_steps=5000)
    runs.add("nystrom,quick", seed=2, steps=(), train__num_steps=5000)
    runs.add("softmax,quick", steps=(700,), train__num_steps=5000)
    rows = scores(runs)
    assert rows["nystrom"][COLUMN] == "50.00 (1 of 3; 500, 0 of 5,000 steps)"
    assert rows[SOFTMAX][COLUMN] == "— (0 of 1; 700 of 5,000 steps)"
    assert rows["floor: root operator"][COLUMN] == "25.00"


def test_score_table_takes_the_steps_of_epochs_from_a_run_that_has_counted_them(runs):
    for seed, num_steps, steps in ((0, 4000, (50,)), (1, 0, ())):
        changes = {"train__num_epochs": 4.0, "train__num_steps": num_steps}
        runs.add("nystrom,quick", seed=seed, steps=steps, **changes)
    assert scores(runs)["nystrom"][COLUMN] == "— (0 of 2; 50, 0 of 4,000 steps)"


def test_score_table_shows_a_metric_that_is_no_rate_as_it_is(runs):
    result = {"metric": "nll", "test_nll": 2.006, "floors": {"rule": 0.5}}
    runs.add("nystrom,quick", 0.1, result=result)
    assert [row["listops nll"] for row in scores(runs).values()] == ["0.50", "2.01 (1)"]


def test_score_table_shows_other_rates_beside_the_selected_one(runs):
    result = {
        "test_sop_accuracy": 0.7831,
        "test_sop_loss": 0.4,
        "other_floors": {
            "sop_accuracy": {"majority class": 0.4959},
            "sop_loss": {"x": 1.0},
        },
    }
    runs.add("nystrom,quick", 0.12, result=result)
    rows = scores(runs)
    assert rows["nystrom"]["listops sop accuracy, %"] == "78.31 (1)"
    assert rows["floor: majority class"]["listops sop accuracy, %"] == "49.59"
    assert list(rows["nystrom"]) == [COLUMN, "listops sop accuracy, %"]


def test_score_table_has_a_column_for_each_option_of_the_task(runs):
    short_floor = {"floors": {"rule": 0.3}}
    long_floor = {"floors": {"rule": 0.4}}
    runs.add("nystrom,quick", 0.4, result=short_floor, task__max_length=500)
    runs.add("nystrom,quick", 0.5, result=long_floor, task__max_length=900)
    runs.add("softmax,quick", 0.8, result={"floors": {}}, task__max_length=900)
    short = "listops accuracy, % (max_length=500)"
    long = "listops accuracy, % (max_length=900)"
    assert scores(runs) == {
        "floor: rule": {short: "30.00", long: "40.00"},
        "nystrom": {short: "40.00 (1)", long: "50.00 (1)"},
        SOFTMAX: {short: DASH, long: "80.00 (1)"},
    }


def test_score_table_has_a_floor_for_each_preset(runs):
    runs.add("nystrom", 0.5, result={"floors": {"rule": 0.3}})
    runs.add("nystrom,quick", 0.5, result={"floors": {"rule": 0.4}})
    floors = {
        name: row[COLUMN] for name, row in scores(runs).items() if "floor" in name
    }
    assert floors == {
        "floor: rule, preset=paper": "30.00",
        "floor: rule, preset=quick": "40.00",
    }


def test_score_table_has_one_row_for_a_floor_that_presets_share(runs):
    for preset in ("", ",quick"):
        runs.add(f"nystrom{preset}", 0.5, result={"floors": {"rule": 0.3}})
    assert scores(runs)["floor: rule"][COLUMN] == "30.00"


def test_score_table_averages_rows_that_have_all_tasks(runs):
    """The accuracies are 20, 30, 40, 50 and 60 %, and 80 % of a second seed.

    Each task has the same weight, whatever the number of its seeds: with the second
    seed the first task has 50 %.
    """
    for arg in ("nystrom", "bigbird,quick"):
        for index, task in enumerate(LRA):
            runs.add(arg, 0.1 * (index + 2), task=task)
    for task in LRA:
        runs.add("reformer", None if task == LRA[0] else 0.5, task=task)
    runs.add("nystrom", 0.8, task=LRA[0], seed=1)
    runs.add("softmax", 0.9)
    rows = scores(runs)

    averages = {row: cells["average accuracy, %"] for row, cells in rows.items()}
    assert averages["nystrom, preset=paper"] == "46.00"
    assert averages["bigbird, preset=quick"] == "40.00"
    assert averages["reformer, preset=paper"] == DASH  # It still trains on one task.
    assert averages[f"softmax, preset=paper, {DROPOUT}"] == DASH


def test_score_table_averages_no_tasks_with_several_options(runs):
    for task in LRA:
        runs.add("linear", 0.5, task=task)
    assert scores(runs)["linear"]["average accuracy, %"] == "50.00"
    runs.add("linear", 0.1, task=LRA[0], task__max_length=900)
    assert "average accuracy, %" not in scores(runs)["linear"]


def test_paired_table_takes_runs_of_equal_test_data(runs):
    paper_data = {"data_sha256": {"test": "a"}}
    quick_data = {"data_sha256": {"test": "b"}}
    runs.add("nystrom", 0.5, result=paper_data)
    runs.add("softmax", 0.5, result=paper_data)
    runs.add("linear,quick", 0.5, result=quick_data)
    runs.add("softmax,quick", 0.5, result=quick_data)
    differences = paired_table(runs.read())["difference"]
    assert [difference.count("quick") for difference in differences] == [0, 2]


def test_cost_table_averages_seeds_of_one_device(three):
    half = {
        "examples_per_second": 503.0,
        "fraction_exact": 0.5,
        # A run of two metrics counts once.
        "other_floors": {"sop_accuracy": {}},
        "test_sop_accuracy": 0.7,
    }
    three.add("nystrom,quick", 0.5, seed=2, result=half)
    other = {"device": "1 × H200", "examples_per_second": 9e4, "compiled_bytes": 2**31}
    three.add("nystrom,quick", 0.5, seed=3, result=other)
    costs = cost_table(three.read())[:2]
    assert {name: list(costs[name]) for name in costs} == {
        "task": ["listops", "listops"],
        "attention": ["nystrom", "nystrom"],
        "parameters": ["81,942", "81,942"],
        # The mean of 500, 500 and 503.
        "training, examples/s of a shared machine": ["501.0 ± 1.7", "90,000.0"],
        "compiled, MiB": ["3.0", "2,048.0"],
        "exact by length, %": ["16.7 ± 28.9", "0.0"],
        "device": ["CPU, 2 cores", "1 × H200"],
    }


def test_cost_table_has_all_finished_runs_and_no_other(runs):
    runs.add("nystrom,quick", 0.5, result={"device": None})
    runs.add("softmax,quick", 0.5)
    trains = runs.add("linear,quick")
    sessions = [{"commit": "c0ffee", "device": "CPU, 2 cores"}]
    checkpoint.save_step(trains, 50, {"kernel": np.zeros(3)}, {"sessions": sessions})
    costs = cost_table(runs.read())
    assert list(costs["attention"]) == ["nystrom", SOFTMAX]
    assert list(costs["device"]) == ["not recorded", "CPU, 2 cores"]


def test_cost_table_has_no_share_of_exact_examples_without_landmarks(runs):
    runs.add("nystrom,quick", 0.5, result={"fraction_exact": 0.25})
    runs.add("softmax,quick", 0.5, result={"fraction_exact": None})
    shares = cost_table(runs.read())["exact by length, %"]
    assert list(shares) == ["25.0", DASH]


def test_format_difference_has_the_error_of_the_seeds_and_that_of_the_examples(runs):
    """The differences are 1, 4 and 4: their mean is 3, and their deviation √3.

    Student's t of two degrees of freedom is 4.3027, so that the seeds' part is 4.3027.
    The deviations over 2,000 examples are on average 1.1121 and 1.1168, so that the
    examples' part is 3.1522. The root of the sum of the squares is 5.3337.
    """
    for seed, test in enumerate((0.51, 0.54, 0.58)):
        runs.add("nystrom,quick", test, seed=seed)
    for seed, test in enumerate((0.50, 0.50, 0.54)):
        runs.add("softmax,quick", test, seed=seed)
    runs.add("nystrom,quick", 0.9, seed=9)
    frame = runs.read()
    nystrom = frame[frame["attention"] == "nystrom"]
    softmax = frame[frame["attention"] == "softmax"]
    difference = format_difference(nystrom, softmax)
    assert difference == "+3.00 ± 5.33 (3), within chance"

    # One seed has the binomial interval of 2,000 test examples, 200 √(variance / 2000).
    # The variance is 0.51 · 0.49 + 0.50 · 0.50.
    difference = format_difference(nystrom[:1], softmax)
    assert difference == "+1.00 ± 3.16 (1), within test noise"


def test_format_difference_calls_no_small_one_a_difference_where_seeds_agree(runs):
    for seed, tests in enumerate(((0.502, 0.3, 0.5), (0.522, 0.32, 0.52))):
        for arg, test in zip(("nystrom", "linear", "softmax"), tests, strict=True):
            runs.add(f"{arg},quick", test, seed=seed)
    _, differences = paired_table(runs.read(), ["softmax"]).to_dict("list").values()
    assert differences == [
        "+0.20 ± 3.16 (2), within chance",
        "-20.00 ± 3.04 (2), exceeds chance",
    ]


@pytest.mark.parametrize("metric", ["f1", "mlm_accuracy", "nll"])
def test_format_difference_judges_nothing_without_the_error_of_the_examples(
    runs, metric
):
    for seed, test in enumerate((0.51, 0.54, 0.58)):
        for arg, gain in (("nystrom", test - 0.5), ("softmax", 0.0)):
            result = {"metric": metric, f"test_{metric}": gain}
            runs.add(f"{arg},quick", 0.0, seed=seed, result=result)
    _, [difference] = paired_table(runs.read()).to_dict("list").values()
    factor = 1 if metric == "nll" else 100
    bound = 4.3027 * 0.0351188 / 3**0.5 * factor
    assert (
        difference == f"{0.13 / 3 * factor:+.2f} ± {bound:.2f} (3), of the seeds alone"
    )


def test_paired_table_judges_a_further_test_split_by_its_own_examples(runs):
    """The variances are those of 0.5 and of 0.52: 200 √((0.25 + 0.2496) / 8,000)."""
    for arg, mismatched in (("nystrom,quick", 0.52), ("softmax,quick", 0.5)):
        result = {
            "test_mismatched_accuracy": mismatched,
            "test_mismatched_examples": 8000,
            "other_floors": {"mismatched_accuracy": {}},
        }
        runs.add(arg, 0.5, result=result)
    _, matched, mismatched = paired_table(runs.read()).iloc[0]
    assert matched == "+0.00 ± 3.16 (1), within test noise"
    assert mismatched == "+2.00 ± 1.58 (1), exceeds test noise"


def test_paired_table_judges_against_the_rows_of_most_seeds(runs):
    runs.add("nystrom,quick", 0.50, train__num_steps=1000)
    runs.add("nystrom,quick", 0.52, train__num_steps=2000)
    runs.add("nystrom,quick", 0.52, train__num_steps=2000, seed=1)
    runs.add("softmax,quick", 0.56)
    table = paired_table(runs.read())
    short = "nystrom, train.num_steps=1000"
    long = "nystrom, train.num_steps=2000"
    softmax = f"softmax, {DROPOUT}, train.num_steps=12000"
    assert dict(table.itertuples(index=False, name=None)) == {
        f"{short} − {softmax}": "-6.00 ± 3.15 (1), exceeds test noise",
        f"{long} − {softmax}": "-4.00 ± 3.15 (1), exceeds test noise",
        f"{short} − {long}": "-2.00 ± 3.16 (1), within test noise",
    }


def test_paired_table_judges_against_the_rows_that_are_changed_least(runs):
    """Both rows of softmax have one seed; that of the preset itself is the second."""
    for arg in ("nystrom,quick", "softmax,quick"):
        runs.add(arg, 0.5)
    runs.add("softmax,quick", 0.6, attention__dropout_rate=0.0)
    pairs = paired_table(runs.read(), ["softmax"])["difference"]
    softmax = f"softmax, {DROPOUT}"
    assert list(pairs) == [
        f"nystrom − {softmax}",
        f"softmax, dropout 0.0 on its weights − {softmax}",
    ]


def test_paired_table_compares_with_the_attentions_that_are_named(runs):
    for arg in ("nystrom", "softmax", "linear", "identity"):
        runs.add(f"{arg},quick", 0.5)
    pairs = paired_table(runs.read(), ["identity", "linear"])["difference"]
    assert list(pairs) == [
        "nystrom − identity",
        f"{SOFTMAX} − identity",
        "linear − identity",
        "nystrom − linear",
        f"{SOFTMAX} − linear",
    ]


def test_paired_table_compares_attentions_of_one_preset(runs):
    """Both presets of a task may have the same test data."""
    for arg in ("nystrom", "softmax"):
        runs.add(arg, 0.5)
        runs.add(f"{arg},quick", 0.4)
        runs.add(f"{arg},quick", 0.4, seed=1)
    pairs = [
        f"nystrom, preset={preset} − softmax, preset={preset}, {DROPOUT}"
        for preset in ("paper", "quick")
    ]
    assert list(paired_table(runs.read())["difference"]) == pairs


def test_paired_table_has_a_column_for_each_task(three):
    for arg, test, nll in (("nystrom,quick", 0.3, 2.0), ("softmax,quick", 0.4, 2.5)):
        three.add(arg, test, task="image")
        three.add(arg, test, task="text", result={"metric": "nll", "test_nll": nll})
        three.add(arg, test, task="glue", result={"metric": "f1", "test_f1": test})
    (row,) = paired_table(three.read()).to_dict("records")
    assert row["difference"] == f"nystrom − {SOFTMAX}"
    assert row["listops accuracy, points"] == "+6.00 ± 3.16 (1), exceeds test noise"
    assert row["image accuracy, points"] == "-10.00 ± 3.00 (1), exceeds test noise"
    # These two are no means over examples.
    assert row["text nll"] == "-0.50 (1)"
    assert row["sst2 f1, points"] == "-10.00 (1)"
