"""A sweep on a SLURM cluster: submits one job array and watches its folders.

A job that is preempted or runs out of its time saves, and goes back into the queue.
"""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError
from submitit.helpers import DelayedSubmission
from submitit.slurm.slurm import SlurmInfoWatcher

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep.grid import Point
from nystromformer.experiments.sweep.process import STOPPED, Process, write_failure
from nystromformer.experiments.sweep.status import Status, state
from nystromformer.experiments.workdir import read_json
from nystromformer.training.files import write_json
from nystromformer.training.interrupt import StopFlag

COMMANDS = ("sbatch", "squeue", "sacct", "scancel", "srun")
JOBS_FILE = "jobs.json"  # which job each point was submitted as
SECONDS_BETWEEN_LOOKS = 20.0
SECONDS_TO_SAVE = 120  # between SLURM's warning and the end of the job's time
MAX_TIMEOUTS = 100  # how often a job that ran out of time is queued again
# What may end a job through no fault of the run: the same command submits it again.
NO_FAILURE = {"CANCELLED", "COMPLETED", "NODE_FAIL", "PREEMPTED", "TIMEOUT", "UNKNOWN"}


class Job:
    """The command of one point, which submitit pickles and runs on the cluster."""

    def __init__(self, command: list[str], workdir: Path):
        self.command, self.workdir = command, workdir
        self.process: Process | None = None

    def __call__(self) -> None:
        """Runs it; ends with its exit status where it failed.

        After a SIGTERM it waits for what SLURM does next: requeues, or kills.
        """
        self.process = Process(self.command, self.workdir, os.environ)
        while (status := self.process.poll()) is None:
            time.sleep(0.5)
        if status in (128 + signal.SIGTERM, -signal.SIGTERM):
            time.sleep(SECONDS_TO_SAVE)
        if status not in {0, *STOPPED}:
            sys.exit(abs(status))

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit before the job is queued again: saves and stops."""
        if self.process is not None:
            self.process.stop()
            self.process.wait()
        return DelayedSubmission(Job(self.command, self.workdir))


def check_slurm() -> None:
    """Raises ConfigError if this machine has no SLURM."""
    if missing := [name for name in COMMANDS if shutil.which(name) is None]:
        raise ConfigError(
            f"--executor=slurm, but this machine has no {', '.join(missing)}: log in "
            "to the cluster, or use --executor=local"
        )


def run_on_slurm(
    points: Sequence[Point],
    folder: Path,
    status: Status,
    parameters: dict[str, Any],
    max_minutes: float | None,
) -> None:
    """Submits the points that are not in the queue, and watches until all have left it.

    A signal ends the watching, not the jobs. The parameters are those of submitit's
    executor; `max_minutes` are those of each run.
    """
    path = folder / "slurm" / JOBS_FILE
    jobs: dict[str, str] = read_json(path) if path.exists() else {}
    queued = _queue()
    if new := [point for point in points if jobs.get(point.name) not in queued]:
        executor = submitit.SlurmExecutor(path.parent, max_num_timeout=MAX_TIMEOUTS)
        executor.update_parameters(
            job_name=folder.name,
            signal_delay_s=SECONDS_TO_SAVE,
            additional_parameters={"requeue": True},
            **parameters,
        )
        limit = [f"--max_minutes={max_minutes}"] if max_minutes else []
        calls = [Job(x.command(folder) + limit, folder / x.name) for x in new]
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the error says it again
                submitted = executor.submit_array(calls)
        except (FailedJobError, FailedSubmissionError) as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        jobs |= {x.name: y.job_id for x, y in zip(new, submitted, strict=True)}
        write_json(path, jobs)
    ours = {point.name: jobs[point.name] for point in points}
    _watch(ours, status)
    _note_failures(ours, folder)
    status.show(running=[])


def _watch(jobs: dict[str, str], status: Status) -> None:
    """Shows the state until no job is in the queue; exits on a signal."""
    queued = dict.fromkeys(jobs.values(), "PENDING")
    with StopFlag() as stop:
        while stop.signum is None and queued.keys() & {*jobs.values()}:
            status.show([n for n, job in jobs.items() if queued.get(job) == "RUNNING"])
            ends = time.monotonic() + SECONDS_BETWEEN_LOOKS
            while stop.signum is None and time.monotonic() < ends:
                time.sleep(0.2)
            with contextlib.suppress(ConfigError):  # a busy controller comes back
                queued = _queue()
    if stop.signum is not None:
        arrays = sorted({job.split("_")[0] for job in jobs.values()})
        status.say(
            "no longer watching; the jobs continue. Run this again to watch; "
            f"scancel {' '.join(arrays)} saves and stops them"
        )
        sys.exit(128 + stop.signum)


def _queue() -> dict[str, str]:
    """Job id -> state, of this person's jobs that have not ended."""
    command = ["squeue", "--me", "--array", "--noheader", "--format=%i %T"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"squeue: {done.stderr.strip()}")
    return dict(line.split() for line in done.stdout.splitlines() if line.strip())


def _note_failures(jobs: dict[str, str], folder: Path) -> None:
    """Records why a job ended that left neither a result nor a reason."""
    watcher = SlurmInfoWatcher()
    for job in jobs.values():
        watcher.register_job(job)
    watcher.update()
    for name, job in jobs.items():
        found = watcher.get_state(job, mode="cache").split()[0]
        if state(folder / name) == "waiting" and found not in NO_FAILURE:
            write_failure(folder / name, f"SLURM job {job}: {found}")
