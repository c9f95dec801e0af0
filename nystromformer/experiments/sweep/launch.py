"""Starts the runs of a sweep on this machine.

Each run is a process of train.py that writes to log.txt in its workdir; or a group of
seeds is, which are trained together, and writes to that of its first. If the sweep
is killed, the current runs train on, and a new sweep leaves them alone.
"""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tqdm import tqdm

from nystromformer.errors import Interrupted
from nystromformer.experiments.cli import SIGNALS, StopFlag
from nystromformer.experiments.sweep.points import (
    Point,
    group_command,
    group_seeds,
)
from nystromformer.experiments.sweep.progress import (
    LOG_FILE,
    SweepProgress,
    find_state,
)
from nystromformer.metrics import format_metric
from nystromformer.run_files import FAILURE_FILE, read_result
from nystromformer.training.output import say

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
# A run with one of these exit statuses has ended well, or was stopped by a signal and
# can go on. A shell adds 128 to a signal's number, and Python's subprocess negates it.
RESUMABLE_STATUSES = frozenset(
    [0, *(128 + signum for signum in SIGNALS), *(-signum for signum in SIGNALS)]
)
# What a command of ours or Python itself writes about an error.
ERROR_LINE = re.compile(r"error: .*|[\w.]*(Error|Exception)(: .*)?")
SECONDS_BETWEEN_LOOKS = 0.2


def find_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    listing = subprocess.getoutput("nvidia-smi -L")
    return re.findall(r"^GPU (\d+):", listing, re.MULTILINE)


class Job:
    """The process of one run, or of several seeds that are trained together.

    command: the command that trains.
    workdirs: the folder of each run.
    log: what the process prints, in the first folder.
    """

    def __init__(self, command: Sequence[str], *workdirs: Path):
        self.command = command
        self.workdirs = workdirs
        self.log = workdirs[0] / LOG_FILE
        self.env: dict[str, str] = {}
        self.process: Any = None  # the subprocess, once it has started
        self.log_start = 0  # the bytes that earlier starts have written to the log
        self.start_time = 0.0

    @classmethod
    def of_group(cls, group: Sequence[Point], folder: Path) -> Self:
        """The job of a group of points in the folder of their sweep."""
        workdirs = [folder / point.name for point in group]
        return cls(group_command(group, folder), *workdirs)

    @property
    def names(self) -> list[str]:
        """The names of the runs."""
        return [workdir.name for workdir in self.workdirs]

    def start(self, **env: str) -> None:
        """Starts the run, with environment variables besides this process's own."""
        self.env = env
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # Without this a run's last prints would stand in the log behind its error, and
        # those of a run that is killed nowhere.
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        self.start_time = time.monotonic()
        if len(self.workdirs) == 1:
            say(f"{self.names[0]}: starts, its log is {self.log}")
        else:
            say(f"{', '.join(self.names)}: start together, their log is {self.log}")
        with open(self.log, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command, env=os.environ | unbuffered | env, stdout=log, stderr=log
            )

    def finish(self) -> dict[str, str]:
        """Waits for the process, says how each run has ended, and records a failure.

        Returns:
          The name of each run -> its state.
        """
        status = self.process.wait()
        states = {}
        for workdir in self.workdirs:
            state = find_state(workdir)
            # In any other state a different process has taken over the folder.
            if status not in RESUMABLE_STATUSES and state == "waiting":
                log = self.log.read_bytes()[self.log_start :]
                reason = _describe_failure(status, log.decode(errors="replace"))
                workdir.mkdir(exist_ok=True)
                (workdir / FAILURE_FILE).write_text(reason, "utf-8")
                state = "failed"
            say(f"{workdir.name}: {self._describe_end(workdir, state)}")
            states[workdir.name] = state
        return states

    def _describe_end(self, workdir: Path, state: str) -> str:
        """Says how a run has ended, as in "done in 02:10, test accuracy 37.45%"."""
        if state == "done":
            duration = tqdm.format_interval(time.monotonic() - self.start_time)
            result = read_result(workdir) or {}
            metric = result["metric"]
            score = format_metric(metric, result[f"test_{metric}"])
            return f"done in {duration}, test {metric} {score}"
        if state == "failed":
            reason = (workdir / FAILURE_FILE).read_text("utf-8")
            return f"failed: {reason}"
        if state == "running":
            return "in progress elsewhere"
        return "stopped; the same command goes on with it"


def _describe_failure(status: int, log: str) -> str:
    """Says how a process has failed, as in "status 2: error: no data".

    Args:
      status: its exit status, or minus the number of the signal that killed it.
      log: what it has written.
    """
    lines = log.strip().splitlines() or [""]
    last_line = lines[-1]
    if status >= 0:
        # Libraries write more behind an error: JAX, that it has shortened a traceback.
        errors = [line for line in lines if ERROR_LINE.fullmatch(line)]
        return f"status {status}: {errors[-1] if errors else last_line}"
    name = signal.Signals(-status).name
    if name == "SIGKILL":
        return (
            "killed by SIGKILL, as systems do where memory runs out: fewer runs at a "
            "time, or a larger config.train.grad_accum_steps, need less; its last "
            f"line: {last_line}"
        )
    return f"killed by {name}; its last line: {last_line}"


def run_locally(
    points: Sequence[Point],
    folder: Path,
    num_parallel: int | None = None,
    seeds_together: bool = False,
) -> None:
    """Trains the points that wait in order, several at a time, and shows progress.

    A point that starts from another one waits for it.

    Args:
      points: all points of the sweep; those that do not wait are left alone.
      folder: the folder of the sweep.
      num_parallel: processes at a time; by default one for each GPU, or one.
      seeds_together: whether one process trains all seeds of a setting.

    Raises:
      Interrupted: by a signal, once all runs have saved.
    """
    free_slots = _make_slots(num_parallel)
    points_to_run = [point for point in points if _is_waiting(point, folder)]
    waiting = make_groups(points_to_run, folder, seeds_together)
    running: list[Job] = []
    progress = SweepProgress(points, points_to_run, folder)
    with contextlib.closing(progress), StopFlag() as stop:
        while (waiting or running) and stop.signum is None:
            has_ended = False
            for job in list(running):
                if job.process.poll() is not None:
                    for name, state in job.finish().items():
                        progress.end(name, state)
                    has_ended = True
                    running.remove(job)
                    free_slots.append(job.env)

            pending = {point.name for group in waiting for point in group}
            pending |= {name for job in running for name in job.names}
            startable = [group for group in waiting if group[0].source not in pending]
            for group in startable[: len(free_slots)]:
                waiting.remove(group)
                job = _start_job(group, folder, progress, free_slots[0])
                if job:
                    del free_slots[0]
                    running.append(job)
            if running:
                names = [name for job in running for name in job.names]
                progress.show(names, at_once=has_ended)
            time.sleep(SECONDS_BETWEEN_LOOKS)

        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    if stop.signum is not None:
        raise Interrupted(stop.signum)


def make_groups(
    points: Sequence[Point], folder: Path, seeds_together: bool
) -> list[list[Point]]:
    """Groups points: each group is trained by a process of its own."""
    if seeds_together:
        return group_seeds(points, folder)
    return [[point] for point in points]


def _start_job(
    group: Sequence[Point], folder: Path, progress: SweepProgress, env: dict[str, str]
) -> Job | None:
    """Starts the runs of a group, but for those that cannot start; None if none can."""
    startable = []
    for point in group:
        reason = _reason_to_leave_out(point, folder)
        if reason:
            say(f"{point.name}: left out, {reason}")
            progress.end(point.name, find_state(folder / point.name))
        else:
            startable.append(point)
    if not startable:
        return None
    job = Job.of_group(startable, folder)
    job.start(**env)
    return job


def _make_slots(num_parallel: int | None) -> list[dict[str, str]]:
    """The environment variables of each concurrent run, which choose its GPU."""
    slots = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in find_gpus()]
    if not slots:
        slots = [{}]
    num_parallel = num_parallel or len(slots)
    if num_parallel > len(slots) and PREALLOCATE not in os.environ:
        # Otherwise the first run on a GPU takes most of its memory.
        slots = [{**slot, PREALLOCATE: "false"} for slot in slots]
    return [slots[index % len(slots)] for index in range(num_parallel)]


def _is_waiting(point: Point, folder: Path) -> bool:
    return find_state(folder / point.name) == "waiting"


def _reason_to_leave_out(point: Point, folder: Path) -> str | None:
    """Says why a point cannot start: for its source, or as another sweep took it."""
    if point.source and find_state(folder / point.source) != "done":
        return f"since {point.source}, from which it starts, is not done"
    if not _is_waiting(point, folder):
        return "since another sweep has taken it"
    return None
