"""Runs are found wherever they lie below; what is broken is named and left out."""

import json
import math

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.report.runs import read_runs


def test_runs_are_found_at_any_depth_and_each_once(runs):
    for name in ("a", "sweep/b", "sweep/deep/c"):
        runs.unfinished(name)
    (runs.folder / "a" / "checkpoints" / "5").mkdir(parents=True)
    (runs.folder / "a" / "checkpoints" / "5" / "config.json").write_text("{}")
    found, _ = read_runs([runs.folder, runs.folder / "sweep", runs.folder / "a"])
    names = [run.name for run in found]
    assert names == ["runs/a", "runs/sweep/b", "runs/sweep/deep/c"]


def test_a_run_is_as_far_as_its_metrics(runs):
    path = runs.unfinished("begun", steps=(50, 1250)) / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 99, "split": "tr\n')  # of a kill
    (runs.unfinished("started") / "metrics.jsonl").unlink()
    (runs.finished("ended") / "metrics.jsonl").unlink()
    (begun, ended, started), skipped = read_runs([runs.folder])
    assert (begun.step, ended.step, started.step, skipped) == (1250, 12_000, 0, [])
    assert begun.curve("validation", "accuracy") == {50: 0.005, 1250: 0.125}
    assert started.curve("train", "loss") == {}


def test_a_value_that_is_no_number_is_not_drawn(runs):
    path = runs.unfinished("odd") / "metrics.jsonl"
    rows = [(1, 0.5), (2, math.nan), (3, None), (4, True), (5, 0.25), (6, 10**400)]
    lines = [json.dumps({"step": s, "split": "train", "loss": x}) for s, x in rows]
    path.write_text("\n".join(lines))
    (run,), _ = read_runs([runs.folder])
    assert run.curve("train", "loss") == {1: 0.5, 5: 0.25}


LINES = {
    '{"step": 99, "spl': "is not valid JSON",
    "[1, 2]": "is not a row of metrics",
    '{"step": 1e23}': "is not a row of metrics",
    '{"step": 12001}': "is not a row of metrics of a run of 12000 steps",
    '{"step": 9, "accuracy": 7}': "is not a row of metrics",
    "[" * 100_003: "is not valid JSON",
}
RESULTS = (
    {"test_accuracy": math.nan},
    {"validation_accuracy": 58.85},
    {"test_accuracy": "0.5"},
    {"metric": "f1", "validation_f1": 0.5},
    {"floors": {"root": None}},
    {"data_sha256": None},
    {"test_examples": 0},
    {"seed": 3},
    {"attention": "softmax"},
)


def test_what_is_broken_is_named_and_left_out(runs):
    messages = []
    for number, (line, message) in enumerate(LINES.items()):
        path = runs.unfinished(f"0{number}") / "metrics.jsonl"
        first, second = path.read_text().splitlines()
        path.write_text("\n".join([first, line, second]) + "\n")
        messages.append(f"/0{number}/metrics.jsonl:2 {message}")
    for number, changes in enumerate(RESULTS):
        runs.finished(f"1{number}", result=changes)
        messages.append(f"/1{number}/result.json is ")
    for number, text in enumerate(('{"task": ', '{"model_type": "bert"}', "[]")):
        (runs.finished(f"2{number}") / "config.json").write_text(text)
        messages.append(f"/2{number}/config.json")
    found, skipped = read_runs([runs.folder])
    assert found == []
    for message, said in zip(messages, skipped, strict=True):
        assert message in said
        assert "\n" not in said


def test_what_another_package_brings_is_read(runs):
    path = runs.unfinished("mine") / "config.json"
    config = json.loads(path.read_text())
    config["task"]["name"] = "chess"
    config["attention"] = {"name": "of_mine", "depth": 3}
    path.write_text(json.dumps(config))
    (run,), _ = read_runs([runs.folder])
    assert run.config == config


def test_what_is_no_folder_of_runs_is_an_error(runs):
    runs.folder.mkdir()
    with pytest.raises(ConfigError, match="none: no such folder"):
        read_runs([runs.folder / "none"])
    with pytest.raises(ConfigError, match=r"runs holds no run .* no config\.json"):
        read_runs([runs.folder])
