"""A sweep on this machine, some points at a time.

Not by submitit's local executor: it starts every job at once, its job ignores SIGTERM,
and on SIGINT it kills what has not ended after a second, amid a checkpoint.
"""

import os
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep.grid import Point
from nystromformer.experiments.sweep.process import Process
from nystromformer.experiments.sweep.status import Status, state
from nystromformer.experiments.workdir import is_locked
from nystromformer.training.interrupt import Interrupted, StopFlag

SECONDS_BETWEEN_LOOKS = 1.0
LEAST_MINUTES = 0.5  # a run that gets less would hardly start


def accelerators() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", "--list-gpus"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))]


def run_locally(
    points: Sequence[Point],
    folder: Path,
    status: Status,
    max_parallel: int | None,
    ends: float | None,
) -> None:
    """Runs the points in order, `max_parallel` or one for each accelerator at a time.

    A point that another process trains, such as one that a killed sweep has left and
    that still saves, waits until that has ended, and one with a source until that has.
    At `ends`, by time.monotonic(), each
    run has saved.

    Raises:
      ConfigError: there is too little time to start a run.
      Interrupted: on a signal or at the end of the time, when all runs have saved.
    """
    if points and _minutes_until(ends) < LEAST_MINUTES:
        raise ConfigError(
            f"--max_minutes, minus the time of checking the points, leaves less than "
            f"{LEAST_MINUTES} minutes: too little to start a run"
        )
    devices = accelerators()
    places = deque(range(max_parallel or len(devices) or 1))
    waiting, running = deque(points), {}
    with StopFlag() as stop:
        try:
            while (running or waiting) and stop.signum is None:
                for process in [p for p in running if p.poll() is not None]:
                    places.append(running.pop(process))
                if _minutes_until(ends) < LEAST_MINUTES:
                    waiting.clear()
                for point in [x for x in waiting if _is_ready(x, folder)]:
                    if places:
                        place = places.popleft()
                        device = devices[place % len(devices)] if devices else None
                        running[_start(point, folder, device, ends)] = place
                        waiting.remove(point)
                status.show([process.workdir.name for process in running])
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for process in running:
                process.stop()
                status.say(f"{process.workdir.name} is saving and stopping")
            for process in running:
                process.wait()
                process.poll()
            status.show(running=[])
    if any(state(folder / point.name) == "waiting" for point in points):
        raise Interrupted(stop.signum or (signal.SIGALRM if ends else signal.SIGTERM))


def _minutes_until(ends: float | None) -> float:
    return float("inf") if ends is None else (ends - time.monotonic()) / 60


def _is_ready(point: Point, folder: Path) -> bool:
    """Whether no process trains in it and the run it starts from has ended."""
    if is_locked(folder / point.name):
        return False
    return not point.source or state(folder / point.source) != "waiting"


def _start(
    point: Point, folder: Path, device: str | None, ends: float | None
) -> Process:
    """One run, on one accelerator where there are some."""
    limit = [f"--max_minutes={_minutes_until(ends):.3f}"] if ends else []
    visible = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    env = {**os.environ, **visible}
    return Process(point.command(folder) + limit, folder / point.name, env)
