"""A point as a process of train.py, with its log and, if it failed, the reason."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from nystromformer.experiments.workdir import RESULT_FILE
from nystromformer.training.files import write_json
from nystromformer.training.interrupt import StopFlag

LOG_FILE = "log.txt"
FAILURE_FILE = "failed.json"
# It can go on: it has saved, or was asked to stop amid its imports.
STOPPED = {status for x in StopFlag.SIGNALS for status in (128 + x, -x)}
# Becomes the command, which gets a SIGTERM (15) when its parent (the first word) is
# gone, even by kill -9. Not in preexec_fn: it would fork this program's threads.
WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(143)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Process:
    """A command whose output goes to the log of its workdir."""

    def __init__(self, command: list[str], workdir: Path, env: Mapping[str, str]):
        self.workdir = workdir
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / FAILURE_FILE).unlink(missing_ok=True)
        if sys.platform == "linux":
            parent = str(os.getpid())
            command = [sys.executable, "-ISc", WITH_PARENT, parent, *command]
        # SLURM warns each process of a job by SIGUSR2, which is for the parent to hear.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        with open(workdir / LOG_FILE, "ab") as log:
            self.log_start = log.tell()
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def poll(self) -> int | None:
        """The exit status, or None while it runs; records a failure."""
        status = self.popen.poll()
        if status and status not in STOPPED:
            write_failure(self.workdir, self._last_line(status))
        return status

    def stop(self) -> None:
        """Asks it to save and end."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """Waits for its end; safe in a signal handler during a poll."""
        with contextlib.suppress(ChildProcessError):  # polled already
            os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)

    def _last_line(self, status: int) -> str:
        if status < 0:
            name = signal.Signals(-status).name
            return f"killed by {name}{'; out of memory?' * (name == 'SIGKILL')}"
        said = (self.workdir / LOG_FILE).read_bytes()[self.log_start :]
        lines = said.decode(errors="replace").strip().split("\n")
        return lines[-1].strip() or f"exit status {status}"


def write_failure(workdir: Path, error: str) -> None:
    """Notes why a run has failed, for `failure` to read."""
    write_json(workdir / FAILURE_FILE, {"error": error})


def failure(workdir: Path) -> str | None:
    """Why the run in a workdir failed, or None if it is not known to have failed."""
    if (workdir / RESULT_FILE).exists():
        return None
    try:
        error = json.loads((workdir / FAILURE_FILE).read_text())["error"]
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        error = f"{FAILURE_FILE} cannot be read"
    return " ".join(str(error).split())
