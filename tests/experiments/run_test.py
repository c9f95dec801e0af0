"""A run has its own data and its workdir."""

import json
import os
import signal

import pytest
from etils import epath

from lra_tasks.errors import DataError
from nystromformer.errors import CheckpointError, ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.run import run_training
from nystromformer.experiments.workdir import is_locked
from nystromformer.run_files import read_result, write_json
from nystromformer.training.checkpoint import save_weights
from nystromformer.training.step import Programs
from tests.small import make_config, stopped_at_once, untrained


@pytest.fixture
def experiment(tmp_path):
    """A small experiment of four steps."""
    config = make_config(
        "identity,quick",
        task__num_train=64,
        task__num_validation=10,
        task__num_test=10,
        task__data_dir=str(tmp_path / "data"),
        model__num_layers=1,
        optimizer__warmup_steps=1,
        train__num_steps=4,
        train__batch_size=8,
    )
    return Experiment(config)


def test_run_training_goes_on_with_its_own_data_alone(
    experiment, monkeypatch, tmp_path
):
    workdir = epath.Path(tmp_path / "run")
    with stopped_at_once():
        run_training(experiment, workdir)

    splits = experiment.load()
    reversed_train = splits["train"].take(slice(None, None, -1))
    config_stat = (workdir / "config.json").stat()
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "load", lambda _: splits | {"train": reversed_train})
        with pytest.raises(CheckpointError, match="was trained on other data"):
            run_training(experiment, workdir)
    assert (workdir / "config.json").stat() == config_stat

    result = run_training(experiment, workdir)
    hashes = {name: split.content_hash for name, split in splits.items()}
    assert result["data_sha256"] == hashes
    assert [session["step"] for session in result["sessions"]] == [0, 1]


def test_run_training_has_the_workdir_before_it_loads_and_compiles(
    monkeypatch, tmp_path
):
    workdir = epath.Path(tmp_path / "run")
    was_locked = []

    def load(_):
        was_locked.append(is_locked(workdir))
        raise DataError("no data")

    monkeypatch.setattr(Experiment, "load", load)
    with pytest.raises(DataError, match="no data"):
        run_training(Experiment(make_config("identity,quick")), workdir)
    assert was_locked == [True]
    assert not workdir.exists()


def test_run_training_leaves_nothing_where_the_step_does_not_compile(
    experiment, monkeypatch, tmp_path
):
    """Such as for want of memory: the next try may have a smaller batch."""

    def compile_step(*_):
        raise MemoryError

    workdir = epath.Path(tmp_path / "run")
    monkeypatch.setattr(Programs, "compile", compile_step)
    with pytest.raises(MemoryError):
        run_training(experiment, workdir)
    assert not workdir.exists()


def test_run_training_finishes_where_a_signal_comes_after_the_test(
    experiment, monkeypatch, tmp_path, capfd
):
    """It says so at once: counting and the floors may take a while."""
    said = []

    def fraction_exact(*_):
        os.kill(os.getpid(), signal.SIGINT)
        said.append(capfd.readouterr().err)
        return 1.0

    monkeypatch.setattr(Experiment, "fraction_exact", fraction_exact)
    workdir = epath.Path(tmp_path / "run")
    result = run_training(experiment, workdir)
    assert read_result(workdir) == json.loads(json.dumps(result))
    assert "stopped by SIGINT as soon as all is saved" in said[0]


def test_run_training_refuses_a_folder_that_it_cannot_make_before_all_else(
    capsys, tmp_path
):
    (tmp_path / "file").touch()
    message = "file/run cannot be written: Not a directory; give another --workdir$"
    with pytest.raises(ConfigError, match=message):
        run_training(
            Experiment(make_config("identity,quick")), epath.Path(tmp_path / "file/run")
        )
    assert capsys.readouterr().out == ""


def test_run_training_refuses_other_weights_before_it_loads(monkeypatch, tmp_path):
    source = untrained("identity,quick", model__num_layers=1)
    source_dir = tmp_path / "source"
    save_weights(source_dir / "best", source.weights)
    write_json(source_dir / "config.json", source.config.to_mapping())
    config = make_config("identity,quick", train__init_from=str(source_dir))

    def load(_):
        raise DataError("the data were loaded")

    monkeypatch.setattr(Experiment, "load", load)
    with pytest.raises(ConfigError, match=r"init_from: .* take the source's width"):
        run_training(Experiment(config), epath.Path(tmp_path / "run"))
