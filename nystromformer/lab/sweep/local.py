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
from collections.abc import Iterable, Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.lab.sweep.grid import Point
from nystromformer.lab.sweep.process import Process
from nystromformer.lab.sweep.status import Status, state
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
    listed = subprocess.run(
        ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False
    )
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(index) for index in range(len(lines))]


def minutes_left(minutes: float, taken: float) -> float:
    """Of --max_minutes after the points were checked.

    Raises:
      ConfigError: too few to start a run, so that the same command never would.
    """
    if minutes - taken < LEAST_MINUTES:
        raise ConfigError(
            f"--max_minutes={minutes:g}: checking the points took {taken:.2f} of them; "
            f"no run is started with less than {LEAST_MINUTES} left"
        )
    return minutes - taken


def run_locally(
    points: Sequence[Point],
    folder: Path,
    status: Status,
    max_parallel: int | None,
    max_minutes: float | None,
) -> None:
    """Runs the points in order, as many at a time as there are places.

    Args:
      points: those to run or to go on with.
      max_parallel: places; by default one for each accelerator, or one.
      max_minutes: what all of it may take: each run stops and saves in time.

    Raises:
      Interrupted: on a signal or at the end of the time, when all runs have saved.
    """
    devices = accelerators()
    places = deque(range(max_parallel or len(devices) or 1))
    waiting = deque(points)
    running: dict[Process, int] = {}
    ends = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    with StopFlag() as stop:
        try:
            while (running or waiting) and stop.signum is None:
                for process in [p for p in running if p.poll() is not None]:
                    places.append(running.pop(process))
                minutes = None if ends is None else (ends - time.monotonic()) / 60
                if minutes is not None and minutes < LEAST_MINUTES:
                    waiting.clear()
                while waiting and places:
                    point, place = waiting.popleft(), places.popleft()
                    device = devices[place % len(devices)] if devices else None
                    running[_start(point, folder, device, minutes)] = place
                status.show([process.workdir.name for process in running])
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            _end(running, status)
    if any(state(folder / point.name) == "waiting" for point in points):
        raise Interrupted(stop.signum or (signal.SIGALRM if ends else signal.SIGTERM))


def _start(
    point: Point, folder: Path, device: str | None, minutes: float | None
) -> Process:
    """One run, on one accelerator where there are some."""
    workdir = folder / point.name
    workdir.mkdir(exist_ok=True)
    limit = [] if minutes is None else [f"--max_minutes={minutes:.3f}"]
    visible = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
    return Process(point.command(folder) + limit, workdir, {**os.environ, **visible})


def _end(running: Iterable[Process], status: Status) -> None:
    """Lets what still runs save and end."""
    for process in running:
        process.stop()
    for process in running:
        status.say(f"{process.workdir.name} is asked to save and stop")
    for process in running:
        process.wait()
        process.poll()
    status.show(running=[])
