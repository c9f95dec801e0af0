"""Signals as a flag that the training loop reads between chunks."""

import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and has saved its state; SIGALRM is a time limit."""

    def __init__(self, signum: int, step: int | None = None):
        name = signal.Signals(signum).name
        why = "its time limit" if signum == signal.SIGALRM else name
        where = "" if step is None else f" at step {step}"
        super().__init__(f"stopped by {why}{where}")
        self.signum = signum


class StopFlag:
    """While entered, the first signal sets `signum`: a run saves its state and ends.

    A second Ctrl-C has its old effect, for a person in a hurry. A second SIGTERM has
    none: a cluster sends it to each process of a job, and their parent passes it on.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopFlag":
        self._before = {s: signal.signal(s, self._set) for s in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum = signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._before[signum])
