"""The progress bar of a run, and the number of steps between two updates."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator

from tqdm import tqdm

from nystromformer.training.devices import of_first
from nystromformer.training.interrupt import mute_terminal

SECONDS_PER_CHUNK = 1.0  # between two looks at the clock, the signals and the metrics


class Pace:
    """The number of steps that take about a second; at first one, which is compiled.

    size: of the next chunk; the same number in every process.
    """

    def __init__(self, largest: int):
        self.largest, self.size, self.seconds = largest, 1, 0.0
        self._compiled = False

    @contextlib.contextmanager
    def measure(self, num_steps: int) -> Iterator[None]:
        """Around the work on so many steps."""
        started = time.monotonic()
        yield
        self.seconds = time.monotonic() - started
        if self._compiled:
            size = round(SECONDS_PER_CHUNK / self.seconds * num_steps)
            self.size = of_first(min(max(size, 1), self.largest))
        self._compiled = True


class Progress:
    """Shows steps with metrics, examples per second and the time that is left."""

    SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, step: int, num_steps: int):
        self.num_steps = num_steps
        self.bar = tqdm(
            total=num_steps,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            disable=None,  # no bar where the output is no terminal
        )
        self.say("compiling the training step…")
        self.first_step: int | None = None  # that was not mostly compiling

    def update(self, step: int, values: dict[str, float], throughput: float) -> None:
        """Now at `step`, with the latest metrics and examples per second."""
        now = time.monotonic()
        if self.first_step is None:
            self.first_step, self.started, self.last_line = step, now, now
            self.bar.reset(self.num_steps)
            self.bar.update(step)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        shown += f"  {throughput:,.0f} examples/s"
        self.bar.set_postfix_str(shown, refresh=False)
        self.bar.update(step - self.bar.n)
        if self.bar.disable and now - self.last_line >= self.SECONDS_BETWEEN_LINES:
            self.last_line = now
            rate = (step - self.first_step) / (now - self.started)
            left = (self.num_steps - step) / rate
            self.say(f"step {step}/{self.num_steps}  {shown}  {left:.0f} s left")

    def say(self, line: str) -> None:
        """A line of its own, above the bar. A pipe that is closed is a hang-up."""
        try:
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()
        except BrokenPipeError:
            mute_terminal()
            signal.raise_signal(signal.SIGHUP)

    def close(self) -> None:
        self.bar.close()
