"""A real process of train.py, killed at its first step."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.bench.starts import seconds_to_first_loss


def test_a_second_start_compiles_nothing(commands, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA_DIR", commands.env["LRA_DATA_DIR"])
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    config, _, *changes = commands.train_args(tmp_path)

    def programs():
        files = (tmp_path / "programs").iterdir()
        names = ("jit_init", "jit_train_chunk")  # what comes before the first loss
        return {path.name for path in files if path.name.startswith(names)}

    assert seconds_to_first_loss([config, *changes], tmp_path) > 0
    compiled = programs()
    assert {name.partition("-")[0] for name in compiled} == {
        "jit_init",
        "jit_train_chunk",
    }
    assert seconds_to_first_loss([config, *changes], tmp_path) > 0
    assert programs() == compiled
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


def test_a_run_that_does_not_start_is_its_own_line(commands, tmp_path):
    arguments = commands.train_args(tmp_path, "--config.train.no_such=1")
    with pytest.raises(ConfigError, match=r"^the config has no key no_such; its file"):
        seconds_to_first_loss([arguments[0], arguments[-1]], tmp_path)
