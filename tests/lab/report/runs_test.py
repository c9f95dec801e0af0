"""Runs are found wherever they lie below, and a broken file is named."""

import json
import math

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.report.runs import read_runs


def test_runs_are_found_at_any_depth_and_each_once(runs):
    for name in ("a", "sweep/b", "sweep/deep/c"):
        runs.unfinished(name)
    (runs.folder / "a" / "checkpoints" / "5").mkdir(parents=True)
    (runs.folder / "a" / "checkpoints" / "5" / "config.json").write_text("{}")
    given = [runs.folder, runs.folder / "sweep", runs.folder / "a"]
    assert [run.name for run in read_runs(given)] == [
        "runs/a",
        "runs/sweep/b",
        "runs/sweep/deep/c",
    ]


def test_folders_of_one_name_stay_apart(runs):
    given = [runs.unfinished("mine/run"), runs.unfinished("yours/run")]
    assert [run.name for run in read_runs(given)] == ["mine/run", "yours/run"]


def test_a_run_is_as_far_as_its_metrics(runs):
    runs.unfinished("begun", steps=(50, 1250))
    (runs.unfinished("started") / "metrics.jsonl").unlink()
    (runs.finished("ended") / "metrics.jsonl").unlink()
    begun, ended, started = read_runs([runs.folder])
    assert (begun.step, ended.step, started.step) == (1250, 5000, 0)
    assert begun.curve("validation", "accuracy") == {50: 0.01, 1250: 0.25}
    assert started.curve("train", "loss") == {}


@pytest.mark.parametrize("end", ['{"step": 99, "spl', '{"step": 99, "split": "tr\n'])
def test_a_half_written_last_line_is_left_out(runs, end):
    path = runs.unfinished("killed") / "metrics.jsonl"
    path.write_text(path.read_text() + end)
    (run,) = read_runs([runs.folder])
    assert [row["step"] for row in run.metrics] == [50, 50]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"step": 99, "spl', "is not valid JSON"),
        ("[1, 2]", "is no row of metrics"),
        ('{"split": "train"}', "is no row of metrics"),
        ("[" * 100_003, "is not valid JSON"),
    ],
)
def test_a_broken_line_elsewhere_is_named_by_file_and_number(runs, line, message):
    path = runs.unfinished("broken") / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text("\n".join([first, line, second]) + "\n")
    with pytest.raises(ConfigError, match=rf"broken/metrics\.jsonl:2 {message}"):
        read_runs([runs.folder])


def test_a_value_that_is_no_number_is_not_drawn(runs):
    path = runs.unfinished("odd") / "metrics.jsonl"
    rows = [(1, 0.5), (2, math.nan), (3, None), (4, True), (5, 0.25), (6, 10**400)]
    lines = [json.dumps({"step": s, "split": "train", "loss": x}) for s, x in rows]
    path.write_text("\n".join(lines))
    (run,) = read_runs([runs.folder])
    assert run.curve("train", "loss") == {1: 0.5, 5: 0.25}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_accuracy": math.nan}, "test_accuracy must be within 0 and 1, got nan"),
        ({"validation_accuracy": 58.85}, "validation_accuracy must be within 0 and 1"),
        ({"test_accuracy": "0.5"}, "test_accuracy must be within 0 and 1, got '0.5'"),
        ({"floors": {"root": None}}, "floor 'root' must be within 0 and 1"),
        ({"floors": [0.5]}, "floors must be a group"),
        ({"data_sha256": None}, "data_sha256 must be a group"),
        ({"test_examples": 0}, "test_examples must be positive"),
        ({"seed": 3}, "is of another run: seed is 3 there, 0 in config.json"),
        ({"attention": "softmax"}, "attention is 'softmax' there, 'nystrom' in"),
    ],
)
def test_a_result_that_cannot_be_is_named(runs, changes, message):
    runs.finished("odd", result=changes)
    with pytest.raises(ConfigError, match=rf"odd/result\.json.*{message}"):
        read_runs([runs.folder])


BROKEN = {
    "config": (
        lambda w: (w / "config.json").write_text('{"task": '),
        "config.json is not valid JSON",
    ),
    "foreign": (
        lambda w: (w / "config.json").write_text('{"model_type": "bert"}'),
        "config.json: unknown key config.model_type",
    ),
    "result": (
        lambda w: (w / "result.json").write_text("{"),
        "result.json is not valid JSON",
    ),
    "keys": (
        lambda w: (w / "result.json").write_text('{"task": "listops"}'),
        "result.json is no result",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_named(runs, case):
    damage, message = BROKEN[case]
    damage(runs.finished("odd"))
    with pytest.raises(ConfigError, match=f"odd/.*{message}"):
        read_runs([runs.folder])


def test_what_is_no_folder_of_runs_is_named(runs):
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


@pytest.mark.parametrize("task", ["chess", "", "../listops"])
def test_a_run_of_an_unknown_task_is_named(runs, task):
    path = runs.unfinished("foreign") / "config.json"
    config = json.loads(path.read_text())
    config["task"]["name"] = task
    path.write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"foreign/config.json: .*known: listops"):
        read_runs([runs.folder])
