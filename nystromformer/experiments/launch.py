"""Runs the points of a sweep: on this machine, or as SLURM job arrays.

Each is a process of train.py that writes to log.txt in its workdir. If the sweep is
killed, the current runs train on, and a new sweep leaves them alone.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import submitit
from etils import epath
from submitit.core.utils import FailedJobError

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep import Point
from nystromformer.experiments.workdir import lock_workdir
from nystromformer.training.interrupt import SIGNALS, Interrupted, StopFlag

FAILURE_FILE = "failed.txt"  # the exit status and the last line of a run that failed
RESUMABLE = {0, *(128 + signum for signum in SIGNALS), *(-signum for signum in SIGNALS)}


def state(workdir: Path) -> str:
    """The state of a run: "done", "failed", "waiting", or "running" elsewhere."""
    if (workdir / "result.json").exists():
        return "done"
    if not workdir.exists():
        return "waiting"
    with contextlib.suppress(ConfigError), lock_workdir(epath.Path(workdir)):
        return "failed" if (workdir / FAILURE_FILE).exists() else "waiting"
    return "running"


def accelerators() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    listed = subprocess.getoutput("nvidia-smi -L")
    return re.findall(r"^GPU (\d+):", listed, re.MULTILINE)


class Job:
    """The process of one point; submitit may put it back into the queue."""

    def __init__(self, command: Sequence[str], workdir: Path):
        self.command, self.workdir = command, workdir

    def start(self, **env: str) -> None:
        """Starts it, with these environment variables."""
        self.env, both = env, os.environ | env
        self.workdir.mkdir(parents=True, exist_ok=True)
        with open(self.workdir / "log.txt", "ab") as log:
            streams: Any = {"stdout": log, "stderr": log}
            self.process = subprocess.Popen(self.command, env=both, **streams)

    def finish(self) -> None:
        """Waits for its end, and says how it ended."""
        status, why = self.process.wait(), ""
        if status not in RESUMABLE:
            log = (self.workdir / "log.txt").read_text(errors="replace")
            why = f"status {status}: " + log.strip().rpartition("\n")[2]
            (self.workdir / FAILURE_FILE).write_text(why)
        print(f"{self.workdir.name}: {why or state(self.workdir)}", flush=True)

    def __call__(self) -> None:
        if state(self.workdir) == "waiting":
            self.start()
            self.finish()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Lets it save and end, for submitit to put it back into the queue."""
        self.process.terminate()
        # The signal has interrupted `wait`, which holds the lock of another `wait`.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Job(self.command, self.workdir))


def run_locally(
    points: Sequence[Point], folder: Path, num_parallel: int | None = None
) -> None:
    """Runs the points in order: one for each GPU, or `num_parallel`, at a time.

    A point that starts from another one's weights waits for it. On a signal all runs
    save, and Interrupted is raised.
    """
    gpus = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in accelerators()] or [{}]
    free = [gpus[place % len(gpus)] for place in range(num_parallel or len(gpus))]
    waiting, running = list(points), []
    with StopFlag() as stop:
        while (waiting or running) and stop.signum is None:
            for job in [x for x in running if x.process.poll() is not None]:
                job.finish()
                running.remove(job)
                free.append(job.env)
            pending = {x.name for x in waiting} | {x.workdir.name for x in running}
            for point in [x for x in waiting if x.source not in pending][: len(free)]:
                waiting.remove(point)
                job = Job(point.command(folder), folder / point.name)
                has_source = not point.source or state(folder / point.source) == "done"
                if has_source and state(job.workdir) == "waiting":
                    job.start(**free.pop(0))
                    running.append(job)
            time.sleep(0.2)
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    if stop.signum is not None:
        raise Interrupted(stop.signum)


def run_on_slurm(points: Sequence[Point], folder: Path, **parameters: Any) -> None:
    """Submits the points as job arrays; those that start from others wait for all.

    A job that runs out of its time saves, and goes back into the queue. The parameters
    are submitit's: partition, time, gpus_per_node, array_parallelism.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError("--cluster=slurm, but this machine has no sbatch")
    executor = submitit.SlurmExecutor(folder / "slurm", max_num_timeout=100)
    more: dict[str, Any] = {"requeue": True}
    parameters |= {"job_name": folder.name, "additional_parameters": more}
    parameters["signal_delay_s"] = 120  # from SLURM's warning to the end of the time
    stages = [x for x in points if not x.source], [x for x in points if x.source]
    for stage in filter(None, stages):
        jobs = [Job(point.command(folder), folder / point.name) for point in stage]
        executor.update_parameters(**parameters)
        try:
            array = executor.submit_array(jobs)[0].job_id.partition("_")[0]
        except FailedJobError as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        more["dependency"] = f"afterany:{array}"
        print(f"submitted {len(jobs)} runs as job {array}; squeue shows them")
