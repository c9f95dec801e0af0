"""How runs are read, completed and ordered."""

import json
import math

import pytest

from nystromformer.experiments.report.report_page import write_report
from nystromformer.experiments.report.runs import sort_key
from nystromformer.run_files import write_json
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification
from tests.experiments.report.conftest import (
    SOFTMAX,
    delete_settings,
    labels,
    set_settings,
)
from tests.small import make_config


def test_sort_key_orders_numbers_with_points_by_their_values():
    rates = ["rate 1e-12", "rate 1e-05", "rate 0.0005", "rate 0.01", "rate 8"]
    shuffled_rates = rates[2:] + rates[:2]
    assert sorted(shuffled_rates, key=sort_key) == rates


def test_make_frame_counts_what_a_sweep_has_planned(runs):
    begun = runs.add("nystrom,quick", 0.5)
    later = make_config("nystrom,quick", train__seed=1).to_mapping()
    write_json(runs.folder / "sweep.json", {begun.name: later, "later": later})
    # The config in a run's own folder is read before that of the sweep.
    frame = runs.read()
    assert list(frame["run"]) == [f"runs/{begun.name}", "runs/later"]
    assert list(frame["seed"]) == [0, 1]
    assert list(frame["finished"]) == [True, False]
    assert list(frame["step"]) == [100, 0]


def test_make_frame_expects_of_a_new_run_the_metric_of_its_objective(runs):
    """A model of masked tokens is trained on the same task."""
    masked = runs.add("nystrom,quick")
    set_settings(masked, {"objective.name": "mlm"})
    result = {"metric": "loss", "test_loss": 2.0}
    finished = runs.add("softmax,quick", 0.5, result=result)
    set_settings(finished, {"objective.name": "mlm"})
    runs.add("linear,quick", 0.5)
    runs.add("linear,quick", seed=1)
    frame = runs.read()
    assert list(frame["attention"]) == ["nystrom", "softmax", "linear", "linear"]
    assert list(frame["metric"]) == ["loss", "loss", "accuracy", "accuracy"]


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("labelled_texts", {"labels": "ham,spam"}),
        ("pictures", {"labels": "cat,dog", "max_length": 1024}),
    ],
)
def test_make_frame_gives_a_planned_run_the_column_of_one_that_knows_its_data(
    task, found, runs
):
    begun = runs.add("nystrom,quick", 0.5, task=task)
    planned = json.loads((begun / "config.json").read_text())
    planned["train"]["seed"] = 1
    write_json(runs.folder / "sweep.json", {"later": planned})
    set_settings(begun, {f"task.{key}": value for key, value in found.items()})
    assert list(runs.read()["data"]) == ["", ""]

    runs.add("nystrom,quick", 0.5, task=task, task__labels="of,others")
    assert list(runs.read()["data"]) == ["", "", "labels=of,others"]


def test_make_frame_takes_a_setting_that_a_run_lacks_for_its_default(runs):
    old = runs.add("nystrom,quick", 0.5)
    runs.add("nystrom,quick", 0.5, seed=1)
    delete_settings(old, "model.short_conv", "train.flip_horizontal")
    assert labels(runs) == ["nystrom"]

    runs.add("nystrom,quick", 0.5, seed=2, model__short_conv=3)
    assert labels(runs) == [
        "nystrom",
        "nystrom, model.short_conv=3",
    ]


def test_make_frame_takes_an_attentions_option_that_a_run_lacks_for_its_default(runs):
    old = runs.add("softmax,quick", 0.5)
    runs.add("softmax,quick", 0.5, seed=1)
    runs.add("nystrom,quick", 0.5)
    delete_settings(old, "attention.fused", "attention.by_layer")
    assert labels(runs) == ["nystrom", SOFTMAX]

    runs.add("softmax,quick", 0.5, seed=2, attention__fused=False)
    softmax = [f"{SOFTMAX}, fused={is_fused}" for is_fused in (False, True)]
    assert labels(runs)[1:] == softmax


def test_make_frame_gives_no_attention_the_options_of_another(runs):
    """A setting that a run has no use for must not stand among its settings."""
    old = runs.add("softmax,quick", 0.5)
    runs.add("softmax,quick", 0.5, seed=1)
    runs.add("nystrom,quick", 0.5)
    delete_settings(old, "attention.fused")
    for _, run in runs.read().iterrows():
        has_landmarks = "attention.num_landmarks" in run["settings"]
        assert has_landmarks == (run["attention"] == "nystrom")


def test_make_frame_knows_no_binomial_deviation_of_labels_within_an_example(runs):
    runs.add("nystrom,quick", 0.5)
    workdir = runs.add("softmax,quick", 0.5)
    set_settings(workdir, {"objective.name": "positions"})
    deviation_of_examples, deviation_of_labels = runs.read()["score_sd"]
    assert deviation_of_examples == pytest.approx(100 * (0.25 / 2000) ** 0.5)
    assert math.isnan(deviation_of_labels)


@pytest.mark.parametrize(
    ("objective", "metric"),
    [
        ({"name": "mlm"}, MaskedTokens.select),
        ({"name": "mlm_sop"}, MaskedOrder.select),
        ({"name": "classification", "select": "f1"}, "f1"),
        ({"name": "classification", "select": None}, Classification().select),
    ],
)
def test_make_frame_knows_by_what_an_unfinished_run_is_scored(runs, objective, metric):
    set_settings(runs.add("nystrom,quick"), {"objective": objective})
    assert list(runs.read()["metric"]) == [metric]


def test_make_frame_takes_runs_that_are_older_than_what_is_recorded(runs):
    """They are scored and told apart."""
    for arg, test, length in (("nystrom", 0.5, 2000), ("linformer", 0.4, 2048)):
        workdir = runs.add(arg, test, task__max_length=length)
        config = json.loads((workdir / "config.json").read_text())
        for key in ("preset", "overrides", "load"):
            del config[key]
        write_json(workdir / "config.json", config)
        result = json.loads((workdir / "result.json").read_text())
        for key in ("command", "fraction_exact"):
            del result[key]
        result["data_sha256"] = {"test": f"of {length}"}
        write_json(workdir / "result.json", result)
    write_report([runs.folder], runs.folder.parent / "out")
    runs.add("linear", 0.3, result={"data_sha256": {"test": "of 2000"}})
    frame = runs.read()
    assert list(frame["label"]) == [
        "nystrom, max_length=2000",
        "linear, preset=paper",
        "linformer, max_length=2048",
    ]
    assert list(frame["score"]) == [50, 30, 40]


def test_make_frame_gives_an_older_run_the_defaults_of_its_task(runs):
    older = runs.add("softmax,quick", 0.5, task="pathfinder")
    delete_settings(older, "task.easier_share")
    runs.add("softmax,quick", 0.6, task="pathfinder", seed=1)
    assert set(runs.read()["data"]) == {""}


def test_make_frame_has_the_origins_of_all_sessions(runs):
    """The last one may have trained few of the steps whose speed a row has."""
    last = {"device": "CPU", "commit": "b1", "versions": {"jax": "2", "XLA_FLAGS": "x"}}
    first = {"device": "H200", "commit": "a0", "versions": {"jax": "1"}}
    sessions = [first, last, last]
    runs.add("nystrom,quick", 0.5, result={**last, "sessions": sessions})
    runs.add("softmax,quick", 0.5, result={**last, "sessions": [last]})
    one_core = [{**last, "device": f"CPU, {x}"} for x in ("1 core", "1 cores")]
    runs.add("linear,quick", 0.5, result={**last, "sessions": one_core})
    frame = runs.read()
    assert list(frame["device"]) == ["H200, then CPU", "CPU", "CPU, 1 core"]
    assert list(frame["commit"]) == ["a0, then b1", "b1", "b1"]
    of_both = {"jax": "1, then 2", "XLA_FLAGS": "not recorded, then x"}
    assert list(frame["versions"]) == [of_both, last["versions"], last["versions"]]


def test_make_frame_gives_no_cost_of_a_program_of_several_seeds(runs):
    runs.add("softmax,quick", 0.5)
    runs.add("softmax,quick", 0.5, seed=1, result={"seeds_together": [1, 2]})
    frame = runs.read()
    assert list(frame["examples_per_second"].isna()) == [False, True]
    assert list(frame["compiled_bytes"].isna()) == [False, True]
