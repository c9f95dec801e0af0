"""Stages of commands: run side by side, stopped at a limit, with a row for each."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from nystromformer.experiments import check_results
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.cores import num_cores

# A training run has this many seconds to save after SIGTERM.
SECONDS_TO_SAVE = 20
SECONDS_BETWEEN_LOOKS = 0.1


class Command(NamedTuple):
    """A command of a stage.

    Attributes:
      name: the name of its log file and of its row in the results.
      words: the program and its arguments.
      env: environment variables that it gets beside those of this process.
      missing: what it needs and this machine lacks. It is then left out.
    """

    name: str
    words: list[str]
    env: Mapping[str, str] = {}
    missing: str = ""


def num_workers() -> int:
    """Returns how many commands or checks run side by side on a CPU or GPU.

    It is a third of the cores, because each compilation has threads of its own, but at
    least three, so that all runs of the stage `train` begin at once.
    """
    return max(3, 1 + num_cores() // 3)


def run_stage(
    stage: str,
    commands: Sequence[Command],
    limit: float,
    out: Path,
    stop: StopFlag,
    num_at_once: int,
) -> None:
    """Runs the commands of a stage, several side by side, and adds a row for each.

    Args:
      stage: its name.
      commands: what it runs.
      limit: seconds after which it is stopped.
      out: the folder of the results.
      stop: a signal that has come stops the stage, too.
      num_at_once: how many commands run side by side.
    """
    deadline = time.monotonic() + limit
    with ThreadPoolExecutor(num_at_once) as pool:
        futures = [pool.submit(run_command, x, deadline, out, stop) for x in commands]
        for future in as_completed(futures):
            row = future.result()
            check_results.add_row(out, {"stage": stage, **row})
            print(f"{row['command']}: {row['status']}, {row['seconds']:.0f} s")
    for row in check_results.read_benchmark(out / "benchmark" / stage):
        check_results.add_row(out, {"stage": stage, **row})


def run_command(
    command: Command, deadline: float, out: Path, stop: StopFlag
) -> dict[str, Any]:
    """Runs a command until its deadline or a signal.

    Args:
      command: what is run. Its output goes to a file in `out`/logs.
      deadline: in seconds of `time.monotonic`.
      out: the folder of the results.
      stop: tells whether a signal has come.

    Returns:
      A row with the keys `command`, `status` and `seconds`.
    """
    start = time.monotonic()
    row: dict[str, Any] = {"command": command.name, "status": "ok", "seconds": 0.0}
    if command.missing:
        return row | {"status": f"left out: {command.missing}"}
    if stop.signum is not None:
        return row | {"status": "not begun: a signal came"}
    if start >= deadline:
        return row | {"status": "not begun: no time was left"}

    log = out / "logs" / f"{command.name}.txt"
    with open(log, "w") as stream:
        print(shlex.join(command.words), file=stream, flush=True)
        process = subprocess.Popen(
            command.words,
            stdout=stream,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **_shared_env(out), **command.env},
            start_new_session=True,
        )
        while process.poll() is None and row["status"] == "ok":
            if stop.signum is not None:
                row["status"] = f"stopped by {signal.Signals(stop.signum).name}"
            elif time.monotonic() >= deadline:
                row["status"] = "stopped at its limit"
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if row["status"] != "ok":
            _stop(process)

    if process.returncode and row["status"] == "ok":
        last_line = log.read_text().strip().splitlines()[-1]
        row["status"] = f"failed, status {process.returncode}: {last_line[:300]}"
    return row | {"seconds": round(time.monotonic() - start, 1)}


def _stop(process: subprocess.Popen) -> None:
    """Ends a process: it may save first.

    When it has ended, or after SECONDS_TO_SAVE, its whole group is killed.
    """
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_TO_SAVE)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shared_env(out: Path) -> dict[str, str]:
    """What every command starts with: several share one accelerator and one cache."""
    cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(out / "cache"))
    return {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONUNBUFFERED": "1",
    }
