"""A point as a job of SLURM: runs, saves when it has to leave, and comes back."""

import os
import signal
import sys
import time
from pathlib import Path

from submitit.helpers import DelayedSubmission

from nystromformer.lab.sweep.process import STOPPED, Process

SECONDS_TO_SAVE = 120  # between SLURM's warning and the end of the job's time


class Job:
    """What submitit carries to the cluster: one point's command."""

    def __init__(self, command: list[str], workdir: Path):
        self.command, self.workdir = command, workdir
        self.process: Process | None = None

    def __call__(self) -> None:
        """Runs it; ends with its exit status where it failed.

        After a SIGTERM it waits for what SLURM does next: requeues, or kills.
        """
        self.workdir.mkdir(parents=True, exist_ok=True)
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
