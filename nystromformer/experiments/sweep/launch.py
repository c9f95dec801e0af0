"""Starts the runs of a sweep, on this machine or as SLURM job arrays.

Each run is a process of train.py that writes to log.txt in its workdir. If the sweep
is killed, the current runs train on, and a new sweep leaves them alone.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import submitit
from etils import epath
from submitit.core.utils import FailedJobError
from tqdm import tqdm

from nystromformer.errors import ConfigError, Interrupted
from nystromformer.experiments.cli import SIGNALS, StopFlag
from nystromformer.experiments.config_file import read_result
from nystromformer.experiments.sweep.points import Point
from nystromformer.experiments.sweep.progress import (
    FAILURE_FILE,
    LOG_FILE,
    SweepProgress,
    find_state,
)
from nystromformer.run_files import format_metric
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
SECONDS_OF_WARNING = 120  # SLURM warns a job this long before its time is over


def find_gpus() -> list[str]:
    """Returns the GPUs that this process may use, as CUDA_VISIBLE_DEVICES does."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    listing = subprocess.getoutput("nvidia-smi -L")
    return re.findall(r"^GPU (\d+):", listing, re.MULTILINE)


class Job:
    """The process of one run. As a job of SLURM, submitit calls and requeues it.

    command: the command that trains.
    workdir: the folder of the run.
    """

    def __init__(self, command: Sequence[str], workdir: Path):
        self.command = command
        self.workdir = workdir
        self.env: dict[str, str] = {}
        self.process: Any = None  # the subprocess, once it has started
        self.log_start = 0  # the bytes that earlier starts have written to the log
        self.start_time = 0.0

    def start(self, **env: str) -> None:
        """Starts the run, with environment variables besides this process's own."""
        self.env = env
        self.workdir.mkdir(parents=True, exist_ok=True)
        # Without this a run's last prints would stand in the log behind its error, and
        # those of a run that is killed nowhere.
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        self.start_time = time.monotonic()
        say(f"{self.workdir.name}: starts, its log is {self.workdir / LOG_FILE}")
        with open(self.workdir / LOG_FILE, "ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command, env=os.environ | unbuffered | env, stdout=log, stderr=log
            )

    def finish(self) -> str:
        """Waits for the run to end, says how it has ended, and records a failure.

        Returns:
          The state of the run.
        """
        status = self.process.wait()
        state = find_state(self.workdir)
        # In any other state a different process has taken over the folder.
        if status not in RESUMABLE_STATUSES and state == "waiting":
            log = (self.workdir / LOG_FILE).read_bytes()[self.log_start :]
            reason = _describe_failure(status, log.decode(errors="replace"))
            (self.workdir / FAILURE_FILE).write_text(reason)
            state = "failed"
        say(f"{self.workdir.name}: {self._describe_end(state)}")
        return state

    def _describe_end(self, state: str) -> str:
        """Says how the run has ended, as in "done in 02:10, test accuracy 37.45%"."""
        if state == "done":
            duration = tqdm.format_interval(time.monotonic() - self.start_time)
            result = read_result(epath.Path(self.workdir)) or {}
            metric = result["metric"]
            score = format_metric(metric, result[f"test_{metric}"])
            return f"done in {duration}, test {metric} {score}"
        if state == "failed":
            return f"failed: {(self.workdir / FAILURE_FILE).read_text()}"
        if state == "running":
            return "in progress elsewhere"
        return "stopped; the same command goes on with it"

    def __call__(self) -> None:
        """Trains to the end, as a job of SLURM."""
        jax.config.update("jax_platforms", "cpu")  # the GPU is for the run
        if find_state(self.workdir) == "waiting":
            self.start()
            self.finish()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Stops the run after a checkpoint, and requeues this job.

        submitit calls it when the time of the job is nearly over.
        """
        if self.process:
            self.process.terminate()
            # `finish` waits for the process, too: the signal has interrupted it, and it
            # holds the lock of `Popen.wait`.
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Job(self.command, self.workdir))


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
    points: Sequence[Point], folder: Path, num_parallel: int | None = None
) -> None:
    """Trains the points that wait in order, several at a time, and shows progress.

    A point that starts from another one waits for it.

    Args:
      points: all points of the sweep; those that do not wait are left alone.
      folder: the folder of the sweep.
      num_parallel: runs at a time; by default one for each GPU, or one.

    Raises:
      Interrupted: by a signal, once all runs have saved.
    """
    free_slots = _make_slots(num_parallel)
    waiting = [point for point in points if _is_waiting(point, folder)]
    running: list[Job] = []
    progress = SweepProgress(points, waiting, folder)
    with contextlib.closing(progress), StopFlag() as stop:
        while (waiting or running) and stop.signum is None:
            has_ended = False
            for job in list(running):
                if job.process.poll() is not None:
                    progress.end(job.workdir.name, job.finish())
                    has_ended = True
                    running.remove(job)
                    free_slots.append(job.env)

            pending = {point.name for point in waiting}
            pending |= {job.workdir.name for job in running}
            startable = [point for point in waiting if point.source not in pending]
            for point in startable[: len(free_slots)]:
                waiting.remove(point)
                reason = _reason_to_leave_out(point, folder)
                if reason:
                    say(f"{point.name}: left out, {reason}")
                    progress.end(point.name, find_state(folder / point.name))
                    continue
                job = _make_job(point, folder)
                job.start(**free_slots.pop(0))
                running.append(job)
            if running:
                names = [job.workdir.name for job in running]
                progress.show(names, at_once=has_ended)
            time.sleep(SECONDS_BETWEEN_LOOKS)

        if running:
            say("stopping, once the runs have saved")
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    if stop.signum is not None:
        raise Interrupted(stop.signum)


def _make_job(point: Point, folder: Path) -> Job:
    return Job(point.command(folder), folder / point.name)


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


def check_slurm() -> None:
    """Raises ConfigError unless this machine can submit jobs to SLURM."""
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise ConfigError(
                f"--cluster=slurm, but this machine has no {program}: start the sweep "
                "where SLURM is, or leave --cluster out"
            )


class _SlurmExecutor(submitit.SlurmExecutor):
    """submitit's executor, which shows the script of a job also without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        """Does not look for SLURM, for which `check_slurm` does."""
        return 1

    def script(self, points: Sequence[Point]) -> str:
        """Returns the script of a job of these runs, as it would be submitted."""
        if len(points) > 1:
            self.parameters["map_count"] = len(points)
        return self._make_submission_file_text(self._submitit_command_str, uid="")


def _make_stages(points: Sequence[Point]) -> list[list[Point]]:
    """The points that start from none, and those that start from others, if any."""
    first = [point for point in points if not point.source]
    second = [point for point in points if point.source]
    return [stage for stage in (first, second) if stage]


def _make_executor(
    folder: Path, parameters: Mapping[str, Any], previous_job: str | None
) -> _SlurmExecutor:
    """Makes what submits a job that waits for the end of the previous one."""
    executor = _SlurmExecutor(folder / "slurm", max_num_timeout=100)
    options: dict[str, Any] = {"requeue": True}
    if previous_job:
        options["dependency"] = f"afterany:{previous_job}"
    executor.update_parameters(
        **parameters,
        job_name=folder.name,
        signal_delay_s=SECONDS_OF_WARNING,
        additional_parameters=options,
    )
    return executor


def slurm_scripts(
    points: Sequence[Point], folder: Path, **parameters: Any
) -> list[str]:
    """Returns the scripts of the jobs that `run_on_slurm` would submit."""
    scripts = []
    previous_job = None
    for stage in _make_stages(points):
        executor = _make_executor(folder, parameters, previous_job)
        scripts.append(f"# A job for {_count_runs(stage)}:\n{executor.script(stage)}")
        previous_job = "NUMBER_OF_THE_FIRST_JOB"
    return scripts


def _count_runs(points: Sequence[Point]) -> str:
    return "1 run" if len(points) == 1 else f"{len(points)} runs"


def run_on_slurm(points: Sequence[Point], folder: Path, **parameters: Any) -> None:
    """Submits the points as job arrays; those that start from others wait for all.

    A job that runs out of its time saves, and goes back into the queue. `check_slurm`
    has been called.

    Args:
      points: those that wait.
      folder: the folder of the sweep.
      parameters: those of submitit, such as partition, time and gpus_per_node.

    Raises:
      ConfigError: if SLURM refuses the jobs.
    """
    previous_job = None
    for stage in _make_stages(points):
        executor = _make_executor(folder, parameters, previous_job)
        jobs = [_make_job(point, folder) for point in stage]
        try:
            # submitit prints what it raises.
            with contextlib.redirect_stderr(io.StringIO()):
                submitted = executor.submit_array(jobs)
        except FailedJobError as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        previous_job = submitted[0].job_id.partition("_")[0]
        print(f"submitted {_count_runs(stage)} as job {previous_job}; squeue shows it")
        for job, run in zip(submitted, jobs, strict=True):
            print(f"  {job.job_id}  {run.workdir / LOG_FILE}")
