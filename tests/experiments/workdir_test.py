"""A run's folder: who may train there."""

import pytest
from etils import epath

from nystromformer.config import ConfigError
from nystromformer.experiments.workdir import (
    CONFIG_FILE,
    check_workdir,
    find_folder,
    lock_workdir,
    read_config,
    write_json,
)
from tests.small import make_config


def begin(workdir, config, saved=True):
    """A workdir in which a run of this config has, or has not, saved something."""
    write_json(epath.Path(workdir) / CONFIG_FILE, config.to_mapping())
    if saved:
        (epath.Path(workdir) / "checkpoints" / "20").mkdir(parents=True)
    return epath.Path(workdir)


def test_find_folder_is_on_a_disk_or_in_a_bucket(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder("~/run") == epath.Path(tmp_path / "run")
    assert str(find_folder("gs://bucket/run")) == "gs://bucket/run"
    with pytest.raises(ConfigError, match="is neither a folder nor gs://BUCKET/RUN"):
        find_folder("s3://bucket/run")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "metrics.jsonl",
            "",
            r"is not empty \(metrics\.jsonl\): name a new or",
        ),
        ("tokenizer.json", "{}", r"is not empty \(tokenizer\.json\)"),
        ("checkpoints/20/state", "", r"is not empty \(checkpoints\)"),
        (
            "config.json",
            '{"architectures": []}',
            r"config\.json is not the config of a",
        ),
        ("config.json", '{"task"', r"config\.json is not the config of a run"),
    ],
)
def test_check_workdir_rejects_a_folder_of_something_else(
    tmp_path, name, content, said
):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        check_workdir(epath.Path(tmp_path), make_config())


def test_check_workdir_takes_a_new_an_empty_and_a_logged_folder(tmp_path):
    check_workdir(epath.Path(tmp_path / "new"), make_config())
    check_workdir(epath.Path(tmp_path), make_config())
    for name in ("lock", "log.txt", "failed.txt", "train.log"):
        (tmp_path / name).touch()
    check_workdir(epath.Path(tmp_path), make_config())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train__seed": 7}, r"train\.seed is 0 there, 7 here"),
        ({"task__num_train": 7}, r"task\.num_train is \d+ there, 7 here"),
        (
            {"train__init_from": "/a/bert2"},
            r"train\.init_from is 'bert' there, 'bert2'",
        ),
    ],
)
def test_check_workdir_rejects_another_config_once_something_is_saved(
    tmp_path, change, said
):
    config = make_config(train__init_from="/a/bert")
    other = make_config(**{"train__init_from": "/a/bert", **change})
    check_workdir(begin(tmp_path / "begun", config, saved=False), other)
    workdir = begin(tmp_path / "saved", config)
    check_workdir(workdir, config)
    with pytest.raises(ConfigError, match=said):
        check_workdir(workdir, other)


@pytest.mark.parametrize(
    "change",
    [
        {"task__data_dir": "/moved"},
        {"task__source_dir": "/moved"},
        {"train__init_from": "/moved/bert"},
    ],
)
def test_check_workdir_takes_data_and_runs_that_have_moved(tmp_path, change):
    workdir = begin(tmp_path, make_config(train__init_from="/a/bert"))
    check_workdir(workdir, make_config(**{"train__init_from": "/a/bert", **change}))


def test_check_workdir_compares_by_the_types_of_json(tmp_path):
    config = make_config("nystrom,quick", task__sizes=(1, 2))
    check_workdir(begin(tmp_path, config), config)


def test_lock_workdir_holds_while_a_process_trains_there(tmp_path):
    workdir = epath.Path(tmp_path / "new")
    refused = pytest.raises(ConfigError, match="another process is training in")
    with lock_workdir(workdir), refused:
        lock_workdir(workdir)
    with lock_workdir(workdir):  # free again
        pass


def test_read_config_rejects_a_folder_without_one(tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.json"):
        read_config(epath.Path(tmp_path))
