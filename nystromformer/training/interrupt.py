"""SIGTERM and SIGINT as a flag that the training loop reads between chunks."""

import signal
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was asked to stop and has saved its state."""

    def __init__(self, signum: int, step: int):
        super().__init__(f"stopped by {signal.Signals(signum).name} at step {step}")
        self.signum = signum


class StopFlag:
    """While entered, the first signal sets `signum`; a second one has its old effect.

    So a run saves its state and ends, and a person in a hurry presses Ctrl-C twice.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopFlag":
        self._before = {s: signal.signal(s, self._set) for s in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _set(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        self._restore()

    def _restore(self) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]
