"""Real processes of train.py, killed at their first step."""

import json

import pytest

from nystromformer.experiments.bench.starts import seconds_to_first_loss
from tests.small import SMALL


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
    families = {name.partition("-")[0] for name in compiled}
    assert families == {"jit_init", "jit_train_chunk"}
    assert seconds_to_first_loss([config, *changes], tmp_path) > 0
    assert programs() == compiled
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


@pytest.mark.slow
def test_every_start_is_in_the_file_and_the_table(commands, tmp_path):
    changes = [flag.replace("--config.", "--change=") for flag in SMALL]
    args = (f"--out={tmp_path}", "--task=listops", "--rounds=2", *changes)
    done = commands.run("first_step.py", *args)
    assert done.returncode == 0, done.stderr
    [row] = json.loads((tmp_path / "first_step.json").read_text())["rows"]
    assert (row["task"], row["attention"]) == ("listops", "nystrom")
    assert len(row["cold"]) == len(row["warm"]) == 2
    line = f"| listops, nystrom | {sum(row['cold']) / 2:.1f} ("
    assert line in (tmp_path / "README.md").read_text()
    assert line in done.stdout


def test_a_run_that_does_not_start_is_its_own_line(commands, tmp_path):
    args = ("--task=listops", "--change=train.no_such=1")
    done = commands.run("first_step.py", f"--out={tmp_path}/out", *args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no_such" in done.stderr
