"""A run's folder: what may live there, and what is noticed of damage."""

import json

import pytest
from etils import epath

from nystromformer.config import ConfigError
from nystromformer.lab.workdir import (
    check_workdir,
    open_workdir,
    read_config,
    read_result,
    write_result,
)
from tests.small import make_config


def test_a_new_workdir_gets_the_config_and_an_old_one_is_compared(tmp_path):
    workdir = tmp_path / "new" / "run"
    open_workdir(workdir, make_config())
    assert read_config(workdir) == make_config()
    open_workdir(workdir, make_config())
    with pytest.raises(ConfigError, match=r"train\.seed is 0 there, 7 here"):
        open_workdir(workdir, make_config(train__seed=7))
    with pytest.raises(ConfigError, match=r"attention\.name is 'nystrom' there"):
        open_workdir(workdir, make_config("softmax"))


def test_a_moved_run_may_find_its_data_elsewhere(tmp_path):
    open_workdir(tmp_path, make_config(task__data_dir="/here"))
    open_workdir(tmp_path, make_config(task__data_dir="/there"))


def test_a_half_written_config_is_an_error_that_names_the_file(tmp_path):
    open_workdir(tmp_path, make_config())
    path = tmp_path / "config.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"config\.json.* is not valid JSON"):
        open_workdir(tmp_path, make_config())
    path.write_text(json.dumps({"task": {}}))
    with pytest.raises(ConfigError, match=r"config\.json: config\.model is missing"):
        open_workdir(tmp_path, make_config())


def test_checkpoints_without_a_config_are_not_taken_over(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json"):
        open_workdir(tmp_path, make_config())


RESULT = {
    "task": "listops",
    "attention": "nystrom",
    "seed": 0,
    "best_step": 40,
    "validation_accuracy": 0.5,
    "test_accuracy": 0.25,
    "test_examples": 50,
    "floors": {"majority class": 0.125},
    "params_sha256": "0" * 64,
}


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "result.json"])
def test_a_digit_changed_in_a_finished_run_is_noticed(tmp_path, name):
    open_workdir(tmp_path, make_config())
    (tmp_path / "metrics.jsonl").write_text('{"step": 40, "loss": 2.0}\n')
    assert read_result(tmp_path) is None
    write_result(tmp_path, RESULT)
    assert RESULT.items() <= read_result(tmp_path).items()
    path = tmp_path / name
    path.write_text(path.read_text().replace("40", "41").replace("5000", "5001"))
    with pytest.raises(ConfigError, match=rf"{name} is (damaged|not the one)"):
        read_result(tmp_path)


def test_a_finished_run_may_lose_its_metrics_and_be_of_an_earlier_version(tmp_path):
    open_workdir(tmp_path, make_config())
    (tmp_path / "metrics.jsonl").touch()
    write_result(tmp_path, RESULT)
    (tmp_path / "metrics.jsonl").unlink()
    assert RESULT.items() <= read_result(tmp_path).items()
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    assert read_result(tmp_path) == RESULT


def test_brackets_without_end_are_no_json(tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_003)
    with pytest.raises(ConfigError, match=r"config\.json is not valid JSON"):
        read_config(tmp_path)


class HttpError(Exception):
    """Of a library of a cloud."""


def refuse(*args, **options):
    raise HttpError("forbidden\nmore")


@pytest.mark.parametrize("method", ["exists", "read_bytes", "mkdir", "write_text"])
def test_what_a_cloud_refuses_is_an_error_of_the_system(tmp_path, monkeypatch, method):
    bucket = epath.Path(tmp_path / "run")
    open_workdir(bucket, make_config())
    (bucket / "metrics.jsonl").touch()
    write_result(bucket, RESULT)
    monkeypatch.setattr("nystromformer.training.bucket.is_local", lambda _: False)
    monkeypatch.setattr("nystromformer.training.writer.is_local", lambda _: False)
    monkeypatch.setattr(type(bucket), method, refuse)
    config = make_config()
    calls = {
        "exists": [lambda: read_result(bucket), lambda: check_workdir(bucket, config)],
        "read_bytes": [lambda: read_config(bucket), lambda: read_result(bucket)],
        "mkdir": [lambda: open_workdir(bucket, config)],
        "write_text": [lambda: write_result(bucket, RESULT)],
    }
    for call in calls[method]:
        with pytest.raises(OSError, match=r"/run.*: forbidden$"):
            call()
