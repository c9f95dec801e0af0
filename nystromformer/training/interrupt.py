"""Signals as a flag that the training loop reads between chunks."""

import signal
from types import FrameType
from typing import Any

# SIGALRM is the time limit; clusters send SIGUSR2 when the time is nearly up.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGALRM)


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop by `signum`, and has saved its state."""

    def __init__(self, signum: int, step: int | None = None):
        at_limit = signum == signal.SIGALRM
        name = "its time limit" if at_limit else signal.Signals(signum).name
        where = "" if step is None else f" at step {step}"
        super().__init__(f"stopped by {name}{where}")
        self.signum = signum


class StopFlag:
    """While entered, the first signal sets `signum`; a second Ctrl-C ends at once."""

    signum: int | None = None

    def __enter__(self) -> "StopFlag":
        self._before: dict[int, Any] = {x: signal.signal(x, self._set) for x in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._before[signum])
