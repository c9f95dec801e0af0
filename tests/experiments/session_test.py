"""A session: its data and vocabulary, and where compiled programs are kept."""

import jax
import pytest

from nystromformer.experiments.run import Experiment
from nystromformer.experiments.session import keep_compiled_programs, train
from nystromformer.training import loop
from nystromformer.training.checkpoint import CheckpointError
from nystromformer.training.files import write_bytes
from nystromformer.training.interrupt import Interrupted
from tests.small import make_config

OPTIONS = ("jax_compilation_cache_dir", "jax_compilation_cache_max_size")


def test_a_run_goes_on_with_its_own_data_alone(monkeypatch, tmp_path):
    changes = {"task__num_train": 64, "train__num_steps": 4}
    changes |= {"optimizer__warmup_steps": 1, "train__batch_size": 8}
    config = make_config(
        "identity,quick", task__data_dir=str(tmp_path / "data"), **changes
    )
    experiment = Experiment.from_config(config)
    (tmp_path / "tokenizer.json").touch()  # of a run that had saved nothing
    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_signum", lambda _: 15)
        with pytest.raises(Interrupted):
            train(experiment, tmp_path, 1)
    assert not (tmp_path / "tokenizer.json").exists()
    with monkeypatch.context() as patched:
        splits = experiment.load()
        splits["train"] = splits["train"].take(slice(None, None, -1))
        patched.setattr(Experiment, "load", lambda _: splits)
        write_bytes(tmp_path / "tokenizer.json", b"its own")
        with pytest.raises(CheckpointError, match=r"trained on other data \(train\)"):
            train(experiment, tmp_path, 1)
        assert (tmp_path / "tokenizer.json").read_bytes() == b"its own"
    assert train(experiment, tmp_path, 1)["data_sha256"]["train"]


def test_programs_lie_in_the_home_by_processor_and_do_not_grow(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    folders = set()
    for features in ("flags : avx2", "flags : avx2 avx512f"):
        monkeypatch.setattr("pathlib.Path.read_text", lambda _, text=features: text)
        jax.config.update("jax_compilation_cache_dir", None)
        keep_compiled_programs()
        folders.add(jax.config.jax_compilation_cache_dir)
    assert 0 < jax.config.jax_compilation_cache_max_size <= 2**30
    keep_compiled_programs()  # which leaves a folder that is set
    assert jax.config.jax_compilation_cache_dir in folders
    for name, value in before.items():
        jax.config.update(name, value)
    assert len(folders) == 2
    assert all(x.startswith(f"{tmp_path}/.cache/nystromformer/") for x in folders)
