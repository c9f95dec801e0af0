"""Real processes: the commands as a person starts them, on a small ListOps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# A model and a task that compile and train in seconds.
SMALL = (
    "--config.model.num_layers=1",
    "--config.model.model_dim=8",
    "--config.model.mlp_dim=8",
    "--config.attention.num_landmarks=4",
    "--config.task.num_train=300",
    "--config.task.num_validation=50",
    "--config.task.num_test=50",
    "--config.optimizer.warmup_steps=10",
    "--config.train.num_steps=400",
    "--config.train.log_every=10",
    "--config.train.eval_every=40",
    "--config.train.checkpoint_every=20",
)


class Commands:
    """Starts scripts of this checkout from another folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.env = {
            **os.environ,
            "LRA_DATA_DIR": str(folder / "data"),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        }

    def with_env(self, **env: str) -> "Commands":
        """The same, with other environment variables."""
        other = Commands(self.folder)
        other.env = {**self.env, **env}
        return other

    def start(self, script: str, *args: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "scripts" / script), *args],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, script: str, *args: str) -> subprocess.CompletedProcess:
        process = self.start(script, *args)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def train_args(self, workdir: Path, *changes: str) -> tuple[str, ...]:
        config = f"--config={ROOT}/configs/listops.py:nystrom,quick"
        return config, f"--workdir={workdir}", *SMALL, *changes

    def train(self, workdir: Path, *changes: str) -> subprocess.CompletedProcess:
        return self.run("train.py", *self.train_args(workdir, *changes))


@pytest.fixture(scope="session")
def commands(tmp_path_factory):
    return Commands(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="session")
def finished(commands):
    """The workdir of a run that nothing interrupted, and what it printed."""
    workdir = commands.folder / "finished"
    done = commands.train(workdir)
    assert done.returncode == 0, done.stderr
    return workdir, done.stdout
