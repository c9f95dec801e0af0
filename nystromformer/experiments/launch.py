"""Runs the points of a sweep: on this machine, or as SLURM job arrays.

Each is a process of train.py that writes to log.txt in its workdir. If the sweep is
killed, the current runs train on, and a new sweep leaves them alone.
"""

import contextlib
import os
import queue
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True)
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


class Job:
    """The process of one point; submitit may put it back into the queue."""

    def __init__(self, command: Sequence[str], workdir: Path):
        self.command, self.workdir = command, workdir
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = False

    def __call__(self, **env: str) -> None:
        """Runs it to its end if it waits, and says how it ended."""
        if self.stopping or state(self.workdir) != "waiting":
            return
        self.workdir.mkdir(parents=True, exist_ok=True)
        with open(self.workdir / "log.txt", "ab+") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env={**os.environ, **env}
            )
            if self.stopping:  # since the check above
                self.process.terminate()
            status = self.process.wait()
            log.seek(0)
            *_, line = log.read().decode(errors="replace").strip().split("\n")
        if self.stopping:
            return
        why = f"status {status}: {line}" if status not in RESUMABLE else ""
        if why:
            (self.workdir / FAILURE_FILE).write_text(why)
        print(f"{self.workdir.name}: {why or state(self.workdir)}", flush=True)

    def stop(self) -> None:
        """Asks it to save and end."""
        self.stopping = True
        if self.process is not None:
            self.process.terminate()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Stops it, for submitit to put it back into the queue."""
        self.stop()
        if self.process is not None:
            # The signal has interrupted `wait`, which holds the lock of another `wait`.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Job(self.command, self.workdir))


def run_locally(
    points: Sequence[Point], folder: Path, num_parallel: int | None = None
) -> None:
    """Runs the points in order: one for each GPU, or `num_parallel`, at a time.

    A point that starts from another one's weights waits for it. On a signal all runs
    save, and Interrupted is raised.
    """
    gpus, places = accelerators(), queue.SimpleQueue()
    for place in range(num_parallel or len(gpus) or 1):
        places.put({"CUDA_VISIBLE_DEVICES": gpus[place % len(gpus)]} if gpus else {})
    jobs = {x.name: Job(x.command(folder), folder / x.name) for x in points}
    futures: dict[str, Future[None]] = {}

    def run(point: Point) -> None:
        if point.source in futures:
            futures[point.source].result()
        env = places.get()
        try:
            if not point.source or state(folder / point.source) == "done":
                jobs[point.name](**env)
        finally:
            places.put(env)

    with StopFlag() as stop, ThreadPoolExecutor(places.qsize()) as pool:
        for point in points:  # any source first
            futures[point.name] = pool.submit(run, point)
        while wait(futures.values(), timeout=0.5).not_done:
            for job in jobs.values():
                if stop.signum is not None and not job.stopping:
                    job.stop()
    if stop.signum is not None:
        raise Interrupted(stop.signum)
    for future in futures.values():
        future.result()


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
    stages = [x for x in points if not x.source], [x for x in points if x.source]
    for stage in filter(None, stages):
        jobs = [Job(point.command(folder), folder / point.name) for point in stage]
        # In seconds, from SLURM's warning to the end of the time.
        executor.update_parameters(**parameters, signal_delay_s=120)
        try:
            array = executor.submit_array(jobs)[0].job_id.partition("_")[0]
        except FailedJobError as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        more["dependency"] = f"afterany:{array}"
        print(f"submitted {len(jobs)} runs as job {array}; squeue shows them")
