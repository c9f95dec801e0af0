"""A run's folder: what is read there, and who may train there."""

import os
import threading
from types import SimpleNamespace

import pytest
from etils import epath
from filelock import FileLock
from flax.traverse_util import flatten_dict

from nystromformer.errors import ConfigError
from nystromformer.experiments.workdir import (
    check_workdir,
    is_locked,
    lock_workdir,
    read_config,
)
from nystromformer.run_files import CONFIG_FILE, RESULT_FILE, write_json
from tests.small import make_config

# A tuple is saved as a list.
BERT = {
    "train__init_from": "/a/bert",
    "task__sizes": (1, 2),
    "task__tokenizer": "/a/words.json",
}


@pytest.fixture
def workdir(tmp_path):
    """A folder that holds the config of a run."""
    write_json(tmp_path / CONFIG_FILE, make_config(**BERT).to_mapping())
    return epath.Path(tmp_path)


@pytest.mark.parametrize("content", ['{"architectures": []}', '{"task"', "[]", "null"])
def test_read_config_rejects_a_folder_of_something_else(tmp_path, content):
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.json"):
        read_config(epath.Path(tmp_path))
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json cannot be used"):
        read_config(epath.Path(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train__seed": 7}, r"train\.seed is 0 there, 7 here"),
        ({"task__num_train": 7}, r"task\.num_train is \d+ there, 7 here"),
        ({"train__init_from": "/a/b/"}, r"train\.init_from is 'bert' there, 'b' here"),
        ({"task__tokenizer": "/a/b"}, r"task\.tokenizer is 'words.json' there, 'b' h"),
    ],
)
def test_check_workdir_rejects_another_config(workdir, change, message):
    config = make_config(**(BERT | change))
    with pytest.raises(ConfigError, match=message):
        check_workdir(workdir, config)


# Keys of a run that may change while it is stopped; a change of any other is refused.
FREE_KEYS = {
    "preset",
    "load",
    "task.data_dir",
    "task.source_dir",
    "train.log_every",
    "train.checkpoint_every",
    "train.position_repeats",
}


def config_with(config, key, value):
    """A stand-in for a config, in which one key has another value."""
    groups = config.to_mapping()
    group, _, name = key.rpartition(".")
    if group:
        groups[group][name] = value
    else:
        groups[name] = value
    return SimpleNamespace(train=config.train, to_mapping=lambda: groups)


def test_check_workdir_rejects_a_change_of_every_key_that_changes_numbers(workdir):
    """Each key of the file as it was saved is changed, one after the other."""
    config = make_config(**BERT)
    values = flatten_dict(config.to_mapping(), sep=".")
    assert values.keys() > FREE_KEYS | {"train.eval_every", "train.batch_size"}
    for key, value in values.items():
        is_text = value is None or isinstance(value, str)
        changed = config_with(config, key, "another" if is_text else [value])
        if key in FREE_KEYS:
            check_workdir(workdir, changed)
        else:
            with pytest.raises(ConfigError, match=rf"{key} is .* there, .* here"):
                check_workdir(workdir, changed)


def test_check_workdir_takes_what_has_moved_or_changes_no_number(workdir):
    changes = {
        "task__data_dir": "/moved",
        "task__source_dir": "/moved",
        "task__tokenizer": "/moved/words.json",
        "train__init_from": "/moved/bert/",
        "train__checkpoint_every": 1,
    }
    check_workdir(workdir, make_config(**(BERT | changes)))


def test_check_workdir_takes_epochs_whose_steps_the_run_has_counted(tmp_path):
    workdir = epath.Path(tmp_path)
    config = make_config(train__num_epochs=2.0, train__num_steps=6_000)
    write_json(workdir / CONFIG_FILE, config.to_mapping())
    check_workdir(workdir, make_config(train__num_epochs=2.0, train__num_steps=0))
    with pytest.raises(
        ConfigError, match=r"train\.num_epochs is 2\.0 there, 3\.0 here"
    ):
        check_workdir(workdir, make_config(train__num_epochs=3.0, train__num_steps=0))


def test_check_workdir_takes_a_sweeps_config_whose_classes_the_run_has_found(tmp_path):
    workdir = epath.Path(tmp_path)
    config = make_config(task="labelled_texts", task__labels="ham,spam")
    write_json(workdir / CONFIG_FILE, config.to_mapping())
    check_workdir(workdir, make_config(task="labelled_texts"))
    changed = make_config(task="labelled_texts", task__labels="ham,egg")
    with pytest.raises(
        ConfigError, match=r"task\.labels is 'ham,spam' there, 'ham,egg'"
    ):
        check_workdir(workdir, changed)


def test_check_workdir_rejects_another_source_of_the_same_name(tmp_path, monkeypatch):
    """A copy of the source has its weights; a run of another seed has not."""
    sources = {}
    for folder, sha256 in (("seed0", "123"), ("copy", "123"), ("seed1", "456")):
        sources[folder] = str(tmp_path / folder / "bert")
        (tmp_path / folder / "bert").mkdir(parents=True)
        result = {"metric": "loss", "test_loss": 0.5, "params_sha256": sha256}
        write_json(tmp_path / folder / "bert" / RESULT_FILE, result)
    workdir = epath.Path(tmp_path)
    config = make_config(train__init_from=sources["seed0"])
    write_json(workdir / CONFIG_FILE, config.to_mapping())

    check_workdir(workdir, make_config(train__init_from=sources["copy"]))
    with pytest.raises(ConfigError, match=r"began with other weights: .*/seed1/bert"):
        check_workdir(workdir, make_config(train__init_from=sources["seed1"]))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"began with other weights: .*~/seed1/bert"):
        check_workdir(workdir, make_config(train__init_from="~/seed1/bert"))


@pytest.mark.parametrize(
    ("key", "default", "other"),
    [
        ("task.seed", 0, 7),
        ("attention.landmark_seed", 0, 7),
        ("attention.by_layer", None, "0=softmax"),
        ("model.short_conv", 0, 7),
    ],
)
def test_check_workdir_takes_a_run_older_than_a_setting_by_its_default(
    tmp_path, key, default, other
):
    group, name = key.split(".")
    groups = make_config().to_mapping()
    assert groups[group].pop(name) == default
    write_json(tmp_path / CONFIG_FILE, groups)
    workdir = epath.Path(tmp_path)
    check_workdir(workdir, make_config())
    with pytest.raises(ConfigError, match=f"{key} is {default} there, {other!r} here"):
        check_workdir(workdir, make_config(**{f"{group}__{name}": other}))


def test_check_workdir_takes_other_workers(tmp_path):
    config = make_config(task="pathfinder")
    write_json(tmp_path / CONFIG_FILE, config.to_mapping())
    three_workers = make_config(task="pathfinder", task__num_workers=3)
    check_workdir(epath.Path(tmp_path), three_workers)


def test_check_workdir_rejects_a_folder_of_something_else(tmp_path):
    (tmp_path / "log.txt").touch()
    check_workdir(epath.Path(tmp_path), make_config())
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"metrics\.jsonl belongs to no run"):
        check_workdir(epath.Path(tmp_path), make_config())


def test_check_workdir_rejects_a_file(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError, match=r"the workdir .*/run is a file: name a fol"):
        check_workdir(epath.Path(tmp_path / "run"), make_config())


def test_lock_workdir_holds_while_a_process_trains_there(workdir):
    message = f"another process is training in {workdir}; wait .* another --workdir$"
    refused = pytest.raises(ConfigError, match=message)
    with lock_workdir(workdir):
        assert is_locked(workdir)
        with refused, lock_workdir(workdir):
            pass
    assert not is_locked(workdir)
    with lock_workdir(workdir):
        pass


def test_lock_workdir_waits_for_one_who_only_asks(workdir):
    with FileLock(workdir / "lock", thread_local=False) as lock:
        threading.Timer(0.3, lock.release).start()
        with lock_workdir(workdir):
            pass


def test_lock_workdir_leaves_no_folder_of_a_run_that_wrote_nothing(tmp_path):
    folder = epath.Path(tmp_path / "new")
    with lock_workdir(folder):
        assert folder.exists()
    assert not folder.exists()


def test_lock_workdir_leaves_the_error_of_a_run_as_it_is_on_nfs(tmp_path, monkeypatch):
    """There a file that is open and deleted stays in its folder by another name."""

    def rename(path):
        os.rename(path, tmp_path / "new" / ".nfs0")

    monkeypatch.setattr(os, "unlink", rename)
    monkeypatch.setattr(os, "remove", rename)
    with (
        pytest.raises(ConfigError, match="no data"),
        lock_workdir(epath.Path(tmp_path / "new")),
    ):
        raise ConfigError("no data")


def test_lock_workdir_leaves_a_folder_that_was_there(tmp_path):
    folder = epath.Path(tmp_path / "old")
    folder.mkdir()
    with lock_workdir(folder):
        pass
    assert folder.exists()


def test_lock_workdir_leaves_the_folder_of_a_run_that_has_begun(tmp_path):
    folder = epath.Path(tmp_path / "begun")
    with lock_workdir(folder):
        (folder / CONFIG_FILE).touch()
    assert (folder / CONFIG_FILE).exists()


def test_is_locked_leaves_no_file(tmp_path):
    assert not is_locked(tmp_path / "no")
    assert not is_locked(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["[x]", "[!x]", "lr=[1,2]", r"a\b", "a*", "a?"])
def test_check_workdir_refuses_a_path_that_cannot_be_read_again(
    tmp_path, monkeypatch, name
):
    for folder in (tmp_path / name, tmp_path / name / "run"):
        with pytest.raises(ConfigError, match="could not be read again: choose a path"):
            check_workdir(epath.Path(folder), make_config())
        folder.mkdir()
        write_json(folder / CONFIG_FILE, make_config().to_mapping())
        with pytest.raises(ConfigError, match="could not be read again: choose a path"):
            check_workdir(epath.Path(folder), make_config())
        (folder / CONFIG_FILE).unlink()
    monkeypatch.chdir(tmp_path / name)
    with pytest.raises(ConfigError, match="could not be read again: choose a path"):
        check_workdir(epath.Path("new"), make_config())
