"""The commands as a person starts them, on a small ListOps.

They are forked from a server that has imported the libraries and initialised none of
JAX's backends: processes of their own, with their own signals and status, without the
seconds of imports.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from pathlib import Path

import jax

from tests.small import SMALL

ROOT = Path(__file__).parents[1]
# The names of the commands, which all import start.py.
SCRIPTS = sorted({path.name for path in ROOT.glob("scripts/*.py")} - {"start.py"})

server = multiprocessing.get_context("forkserver")
server.set_forkserver_preload(
    [
        "tests.commands",
        "pytest",
        "ml_collections",
        "matplotlib.figure",
        "PIL.Image",
        "nystromformer.experiments.cli",
        "nystromformer.experiments.run",
    ]
)


def become(script: str, args: tuple, cwd: Path, env: dict, streams: list) -> None:
    """Makes this fork what `python script args` is.

    Args:
      script: the path of the script.
      args: its arguments.
      cwd: the folder where it runs.
      env: all of its environment variables.
      streams: the files that take its stdout and its stderr.
    """
    multiprocessing.current_process().daemon = False  # a daemon may have no children
    gc.freeze()  # No collection goes through what the server has imported.
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for descriptor, path in enumerate(streams, start=1):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - as to a pipe
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    update_jax_config(env)
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        # A fork does not do by itself what Python does when a process ends.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def update_jax_config(env: dict[str, str]) -> None:
    """Sets JAX's options again: it read the environment when the server imported it."""
    for name, text in env.items():
        option = name.lower()
        if not name.startswith("JAX_") or option not in jax.config.values:
            continue
        old_value = jax.config.values[option]
        if isinstance(old_value, bool):
            jax.config.update(option, text.lower() in ("1", "true", "yes", "on"))
        elif old_value is None:
            jax.config.update(option, text)
        else:
            jax.config.update(option, type(old_value)(text))


def refused(done: subprocess.CompletedProcess) -> str:
    """Checks that a command has ended with one line and status 2; returns the line."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


class Forked:
    """A running script, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, script: str, args: tuple[str, ...], cwd: Path, env: dict):
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder)
        self.streams = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        arguments = (script, args, cwd, env, self.streams)
        self.process = server.Process(target=become, args=arguments, daemon=True)
        self.process.start()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            os.kill(self.process.pid or 0, signum)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.process.join(timeout)
        assert self.poll() is not None, f"it runs on after {timeout} seconds"
        out, err = (Path(path).read_text() for path in self.streams)
        return out, err


class Commands:
    """Starts scripts of this checkout from another folder.

    Args:
      folder: where they run, and prepare their data.
      programs: where they keep what they compile.
      env: changes of the environment variables, which are else those of the tests.
    """

    def __init__(self, folder: Path, programs: Path, env: dict[str, str] | None = None):
        self.folder = folder
        self.programs = programs
        self.changes = env or {}
        self.env = {
            **os.environ,
            "LRA_DATA_DIR": str(folder / "data"),
            "JAX_COMPILATION_CACHE_DIR": str(programs),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            **self.changes,
        }

    def with_env(self, **env: str) -> "Commands":
        """Returns the same with other environment variables."""
        return Commands(self.folder, self.programs, {**self.changes, **env})

    def start(self, script: str, *args: str) -> Forked:
        """Starts a script by its name in scripts/, or by an absolute path."""
        path = str(ROOT / "scripts" / script)
        return Forked(path, args, self.folder, self.env)

    def run(self, script: str, *args: str) -> subprocess.CompletedProcess:
        """Runs a script to its end."""
        process = self.start(script, *args)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(args, process.returncode or 0, out, err)

    def train_args(self, workdir: Path | str, *changes: str) -> tuple[str, ...]:
        """Returns the arguments of train.py for a small model on a small ListOps."""
        config = f"--config={ROOT}/configs/listops.py:nystrom,quick"
        return config, f"--workdir={workdir}", *SMALL, *changes

    def train(self, workdir: Path | str, *changes: str) -> subprocess.CompletedProcess:
        """Trains a small model on a small ListOps to the end."""
        return self.run("train.py", *self.train_args(workdir, *changes))
