"""Signals as a flag that the training loop reads between chunks."""

import os
import signal
import stat
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and has saved its state; SIGALRM is a time limit."""

    def __init__(self, signum: int, step: int | None = None):
        name = signal.Signals(signum).name
        why = "its time limit" if signum == signal.SIGALRM else name
        where = "" if step is None else f" at step {step}"
        super().__init__(f"stopped by {why}{where}")
        self.signum = signum


def catch(handler: Callable[[int, FrameType | None], Any]) -> dict[int, Any]:
    """Sets the handler of all signals that ask to stop, and returns those before.

    A hang-up that is ignored stays ignored: nohup asks for that.
    """
    before: dict[int, Any] = {x: signal.getsignal(x) for x in StopFlag.SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for signum in before:
        signal.signal(signum, handler)
    return before


def mute_terminal() -> None:
    """Redirects output to nowhere: after a hang-up a write would be an error.

    Nor is there what a pipe leads to: the hang-up was for that, too. Files stay.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.dup2(null, descriptor)
    os.close(null)


class StopFlag:
    """While entered, the first signal sets `signum`: a run saves its state and ends.

    A second Ctrl-C has its old effect, for a person in a hurry. A second SIGTERM has
    none: a cluster sends it to each process of a job, and their parent passes it on.
    """

    SIGNALS = (
        *(signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP),
        signal.SIGUSR2,  # a cluster's warning that the time is nearly up
    )

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopFlag":
        self._before = catch(self._set)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGHUP:
            mute_terminal()
        if self.signum is None:
            self.signum = signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._before[signum])
