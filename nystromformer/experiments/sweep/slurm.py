"""Submits the runs of a sweep to SLURM, as job arrays."""

import contextlib
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import submitit
from submitit.core.utils import FailedJobError

from nystromformer.errors import ConfigError
from nystromformer.experiments.sweep.launch import Job
from nystromformer.experiments.sweep.points import Point
from nystromformer.experiments.sweep.progress import find_state

SECONDS_OF_WARNING = 120  # SLURM warns a job this long before its time is over


def check_slurm() -> None:
    """Raises ConfigError unless this machine can submit jobs to SLURM."""
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise ConfigError(
                f"--cluster=slurm, but this machine has no {program}: start the sweep "
                "where SLURM is, or leave --cluster out"
            )


class SlurmJob(Job):
    """A job of SLURM, which submitit calls and requeues."""

    def __call__(self) -> None:
        """Trains to the end."""
        jax.config.update("jax_platforms", "cpu")  # the GPU is for the run
        if any(find_state(workdir) == "waiting" for workdir in self.workdirs):
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
        return submitit.helpers.DelayedSubmission(
            SlurmJob(self.command, *self.workdirs)
        )


class _SlurmExecutor(submitit.SlurmExecutor):
    """submitit's executor, which shows the script of a job also without SLURM."""

    @classmethod
    def affinity(cls) -> int:
        """Does not look for SLURM, for which `check_slurm` does."""
        return 1

    def script(self, groups: Sequence[Sequence[Point]]) -> str:
        """Returns the script of a job of these groups, as it would be submitted."""
        if len(groups) > 1:
            self.parameters["map_count"] = len(groups)
        return self._make_submission_file_text(self._submitit_command_str, uid="")


def _make_stages(groups: Sequence[Sequence[Point]]) -> list[list[Sequence[Point]]]:
    """The groups that start from none, and those that start from others, if any."""
    first = [group for group in groups if not group[0].source]
    second = [group for group in groups if group[0].source]
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
    groups: Sequence[Sequence[Point]], folder: Path, **parameters: Any
) -> list[str]:
    """Returns the scripts of the jobs that `run_on_slurm` would submit."""
    scripts = []
    previous_job = None
    for stage in _make_stages(groups):
        executor = _make_executor(folder, parameters, previous_job)
        scripts.append(f"# A job for {_count_runs(stage)}:\n{executor.script(stage)}")
        previous_job = "NUMBER_OF_THE_FIRST_JOB"
    return scripts


def _count_runs(groups: Sequence[Sequence[Point]]) -> str:
    num_runs = sum(len(group) for group in groups)
    return "1 run" if num_runs == 1 else f"{num_runs} runs"


def run_on_slurm(
    groups: Sequence[Sequence[Point]], folder: Path, **parameters: Any
) -> None:
    """Submits groups as job arrays; those that start from others wait for all.

    A job that runs out of its time saves, and goes back into the queue. `check_slurm`
    has been called.

    Args:
      groups: the points that wait, as `make_groups` returns them.
      folder: the folder of the sweep.
      parameters: those of submitit, such as partition, time and gpus_per_node.

    Raises:
      ConfigError: if SLURM refuses the jobs.
    """
    previous_job = None
    for stage in _make_stages(groups):
        executor = _make_executor(folder, parameters, previous_job)
        jobs = [SlurmJob.of_group(group, folder) for group in stage]
        try:
            # submitit prints what it raises.
            with contextlib.redirect_stderr(io.StringIO()):
                submitted = executor.submit_array(jobs)
        except FailedJobError as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        previous_job = submitted[0].job_id.partition("_")[0]
        print(f"submitted {_count_runs(stage)} as job {previous_job}; squeue shows it")
        for job, run in zip(submitted, jobs, strict=True):
            print(f"  {job.job_id}  {run.log}")
