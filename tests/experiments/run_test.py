"""One run: its data, its sessions, processes that disagree, the program cache."""

import subprocess

import jax
import pytest
from etils import epath

from nystromformer.experiments import provenance
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.run import (
    cache_compiled_programs,
    note_session,
    run_training,
)
from nystromformer.training import loop
from nystromformer.training.checkpoint import CheckpointError
from nystromformer.training.interrupt import Interrupted
from tests.commands import ROOT
from tests.small import make_config


def test_run_training_goes_on_with_its_own_data_alone(monkeypatch, tmp_path):
    changes = {"task__num_train": 64, "train__num_steps": 4}
    changes |= {"optimizer__warmup_steps": 1, "train__batch_size": 8}
    changes |= {"task__data_dir": str(tmp_path / "data")}
    experiment = Experiment.from_config(make_config("identity,quick", **changes))
    workdir = epath.Path(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_signum", lambda _: 15)
        with pytest.raises(Interrupted):
            run_training(experiment=experiment, workdir=workdir)
    with monkeypatch.context() as patched:
        splits = experiment.load()
        splits["train"] = splits["train"].take(slice(None, None, -1))
        patched.setattr(Experiment, "load", lambda _: splits)
        with pytest.raises(CheckpointError, match="was trained on other data"):
            run_training(experiment=experiment, workdir=workdir)
    result = run_training(experiment=experiment, workdir=workdir)
    assert result["data_sha256"] == {
        name: split.content_hash for name, split in experiment.load().items()
    }


def test_note_session_appends_where_something_differs(monkeypatch):
    sessions = []
    for step in (0, 20):
        note_session(sessions, step)
    monkeypatch.setattr(provenance, "device", lambda: "8 × GPU")
    note_session(sessions, 40)
    assert [x["step"] for x in sessions] == [0, 40]
    assert sessions[0]["versions"]["jax"] == jax.__version__
    assert sessions[1]["device"] == "8 × GPU"


def test_commit_is_the_head_and_says_whether_files_differ():
    def git(*args: str) -> str:
        command = ["git", "-C", str(ROOT), *args]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    dirty = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
    assert provenance.commit() == (git("rev-parse", "HEAD") + dirty or None)


def test_cache_compiled_programs_has_a_folder_for_each_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")
    before = {name: jax.config.values[name] for name in options}
    folders = set()
    for features in ("flags : avx2", "flags : avx2 avx512f"):
        monkeypatch.setattr("pathlib.Path.read_text", lambda _, text=features: text)
        jax.config.update("jax_compilation_cache_dir", None)
        cache_compiled_programs()
        folders.add(jax.config.values["jax_compilation_cache_dir"])
    assert 0 < jax.config.values["jax_compilation_cache_max_size"] <= 2**30
    cache_compiled_programs()  # which leaves a folder that is set
    assert jax.config.values["jax_compilation_cache_dir"] in folders
    for name, value in before.items():
        jax.config.update(name, value)
    assert len(folders) == 2
    assert all(x.startswith(f"{tmp_path}/.cache/nystromformer/") for x in folders)
