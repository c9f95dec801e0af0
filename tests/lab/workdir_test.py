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


def begin(workdir):
    """A run that has saved something."""
    open_workdir(workdir, make_config())
    (workdir / "checkpoints" / "20").mkdir(parents=True)
    return workdir


def test_a_new_workdir_gets_the_config_and_one_that_has_begun_keeps_its_own(tmp_path):
    workdir = begin(tmp_path / "new" / "run")
    assert read_config(workdir) == make_config()
    open_workdir(workdir, make_config())
    open_workdir(workdir, make_config(task__data_dir="/moved"))
    with pytest.raises(ConfigError, match=r"train\.seed is 0 there, 7 here"):
        open_workdir(workdir, make_config(train__seed=7))
    with pytest.raises(ConfigError, match=r"attention\.name is 'nystrom' there"):
        open_workdir(workdir, make_config("softmax"))
    assert read_config(workdir) == make_config()


def test_where_nothing_was_saved_another_run_may_begin(tmp_path):
    open_workdir(tmp_path, make_config())
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 10}\n')
    open_workdir(tmp_path, make_config(train__seed=7))
    assert read_config(tmp_path) == make_config(train__seed=7)


def test_a_half_written_config_is_an_error_that_names_the_file(tmp_path):
    path = begin(tmp_path) / "config.json"
    whole = path.read_text()
    for content in (whole[: len(whole) // 2], "[" * 100_003):
        path.write_text(content)
        with pytest.raises(ConfigError, match=r"config\.json is not valid JSON"):
            open_workdir(tmp_path, make_config())
    path.write_text(json.dumps({"task": {}}))
    with pytest.raises(ConfigError, match=r"config\.json: config\.task\.name is miss"):
        open_workdir(tmp_path, make_config())


def test_checkpoints_without_a_config_are_not_taken_over(tmp_path):
    (begin(tmp_path) / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"holds checkpoints but no config\.json"):
        open_workdir(tmp_path, make_config())


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


def test_a_result_has_the_metric_that_chose_its_weights(tmp_path):
    losses = {"metric": "loss", "validation_loss": 0.5, "test_loss": 0.25}
    rest = {key: x for key, x in RESULT.items() if not key.endswith("accuracy")}
    (tmp_path / "result.json").write_text(json.dumps(rest | losses))
    assert read_result(tmp_path) == rest | losses
    (tmp_path / "result.json").write_text(json.dumps(rest))
    with pytest.raises(ConfigError, match="is no result of this program"):
        read_result(tmp_path)


def refuse(*args, **options):
    raise RuntimeError("forbidden\nmore")


@pytest.mark.parametrize("method", ["exists", "read_bytes", "mkdir", "write_text"])
def test_what_a_cloud_refuses_is_an_error_of_the_system(tmp_path, monkeypatch, method):
    bucket = epath.Path(tmp_path / "run")
    begin(bucket)
    (bucket / "metrics.jsonl").touch()
    write_result(bucket, RESULT)
    monkeypatch.setattr("nystromformer.training.files.is_local", lambda _: False)
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
