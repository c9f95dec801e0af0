"""Signals as a flag that a command reads when it can stop."""

import signal
import threading
from types import FrameType
from typing import Any

# Clusters send SIGUSR2 when the time is nearly up. SIGALRM is our own time limit.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGALRM)


class StopFlag:
    """While entered, the first signal sets `signum`; a second Ctrl-C ends at once.

    Only the main thread can handle signals: in any other one nothing sets `signum`.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is not threading.main_thread():
            return self
        for signum in SIGNALS:
            self._previous_handlers[signum] = signal.signal(signum, self._set)
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)

    def _set(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        if signum == signal.SIGINT:
            signal.signal(signum, self._previous_handlers[signum])
