"""Runs are found wherever they lie below; what is broken is named and left out."""

import json
import math

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.report.runs import read_runs


def read(folder):
    """The runs below it, all of them whole."""
    found, skipped = read_runs([folder])
    assert skipped == []
    return found


def test_runs_are_found_at_any_depth_and_each_once(runs):
    for name in ("a", "sweep/b", "sweep/deep/c"):
        runs.unfinished(name)
    (runs.folder / "a" / "checkpoints" / "5").mkdir(parents=True)
    (runs.folder / "a" / "checkpoints" / "5" / "config.json").write_text("{}")
    found, _ = read_runs([runs.folder, runs.folder / "sweep", runs.folder / "a"])
    assert [run.name for run in found] == [
        "runs/a",
        "runs/sweep/b",
        "runs/sweep/deep/c",
    ]


def test_a_run_is_as_far_as_its_metrics(runs):
    runs.unfinished("begun", steps=(50, 1250))
    (runs.unfinished("started") / "metrics.jsonl").unlink()
    (runs.finished("ended") / "metrics.jsonl").unlink()
    begun, ended, started = read(runs.folder)
    assert (begun.step, ended.step, started.step) == (1250, 5000, 0)
    assert begun.curve("validation", "accuracy") == {50: 0.005, 1250: 0.125}
    assert started.curve("train", "loss") == {}


@pytest.mark.parametrize("end", ['{"step": 99, "spl', '{"step": 99, "split": "tr\n'])
def test_a_half_written_last_line_is_left_out(runs, end):
    path = runs.unfinished("killed") / "metrics.jsonl"
    path.write_text(path.read_text() + end)
    (run,) = read(runs.folder)
    assert [row["step"] for row in run.metrics] == [50, 50]


def test_a_value_that_is_no_number_is_not_drawn(runs):
    path = runs.unfinished("odd") / "metrics.jsonl"
    rows = [(1, 0.5), (2, math.nan), (3, None), (4, True), (5, 0.25), (6, 10**400)]
    lines = [json.dumps({"step": s, "split": "train", "loss": x}) for s, x in rows]
    path.write_text("\n".join(lines))
    (run,) = read(runs.folder)
    assert run.curve("train", "loss") == {1: 0.5, 5: 0.25}


LINES = {
    '{"step": 99, "spl': "is not valid JSON",
    "[1, 2]": "is no row of metrics",
    '{"split": "train"}': "is no row of metrics",
    '{"step": 1e23}': "is no row of metrics",
    '{"step": 5001}': "is no row of metrics: its step is not within 0 and 5000",
    '{"step": 9, "accuracy": 7}': "is damaged: accuracy is 7",
    "[" * 100_003: "is not valid JSON",
}


def test_a_broken_line_elsewhere_is_named_by_file_and_number(runs):
    for number, line in enumerate(LINES):
        path = runs.unfinished(f"broken{number}") / "metrics.jsonl"
        first, second = path.read_text().splitlines()
        path.write_text("\n".join([first, line, second]) + "\n")
    whole = runs.unfinished("whole")
    found, skipped = read_runs([runs.folder])
    assert [run.workdir for run in found] == [whole]
    for number, (message, said) in enumerate(zip(LINES.values(), skipped, strict=True)):
        assert said.startswith(f"runs/broken{number} is left out: ")
        assert f"broken{number}/metrics.jsonl:2 {message}" in said


RESULTS = {
    "test_accuracy cannot be nan": {"test_accuracy": math.nan},
    "validation_accuracy cannot be 58.85": {"validation_accuracy": 58.85},
    "test_accuracy cannot be '0.5'": {"test_accuracy": "0.5"},
    "is no result of this program": {"metric": "f1", "validation_f1": 0.5},
    "root cannot be None": {"floors": {"root": None}},
    "floors must be a group": {"floors": [0.5]},
    "data_sha256 must be a group": {"data_sha256": None},
    "test_examples must be positive": {"test_examples": 0},
    "another run: seed is 3 there, 0 in config.json": {"seed": 3},
    "attention is 'softmax' there, 'nystrom' in": {"attention": "softmax"},
}


def test_a_result_that_cannot_be_is_named_and_left_out(runs):
    for number, changes in enumerate(RESULTS.values()):
        runs.finished(f"odd{number:02}", result=changes)
    found, skipped = read_runs([runs.folder])
    assert found == []
    for message, said in zip(RESULTS, skipped, strict=True):
        assert "result.json" in said
        assert message in said


def test_a_foreign_or_half_written_file_is_named_and_left_out(runs):
    files = {
        "config.json": ('{"task": ', '{"model_type": "bert"}', "[]", "7"),
        "result.json": ("{", "[]"),
    }
    for name, texts in files.items():
        for number, text in enumerate(texts):
            workdir = runs.finished(f"{name}{number}")
            (workdir / name).write_text(text)
    found, skipped = read_runs([runs.folder])
    assert found == []
    names = [
        f"{name}{number}" for name, of in files.items() for number in range(len(of))
    ]
    for name, said in zip(names, skipped, strict=True):
        assert said.startswith(f"runs/{name} is left out: ")
        assert f"{name}/{name[:-1]}" in said


def test_what_another_package_brings_is_read(runs):
    path = runs.unfinished("mine") / "config.json"
    config = json.loads(path.read_text())
    config["task"]["name"] = "chess"
    config["attention"] = {"name": "of_mine", "depth": 3}
    path.write_text(json.dumps(config))
    (run,) = read(runs.folder)
    assert run.config == config


def test_what_is_no_folder_of_runs_is_an_error(runs):
    runs.folder.mkdir()
    file = runs.folder / "file"
    file.touch()
    for path, message in [
        (runs.folder / "none", "none: no such folder"),
        (file, "file is a file"),
        (runs.folder, r"runs holds no run .* no config\.json"),
    ]:
        with pytest.raises(ConfigError, match=message):
            read_runs([path])
