"""Progress of a run: a bar for people, a plain line now and then for a log file."""

import sys
import time

from tqdm import tqdm


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
        self.started = self.last_line = time.monotonic()
        self.first_step = step

    def update(self, step: int, values: dict[str, float], throughput: float) -> None:
        """Now at `step`, with the latest metrics and examples per second."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        shown += f"  {throughput:,.0f} examples/s"
        self.bar.set_postfix_str(shown, refresh=False)
        self.bar.update(step - self.bar.n)
        now = time.monotonic()
        if self.bar.disable and now - self.last_line >= self.SECONDS_BETWEEN_LINES:
            self.last_line = now
            rate = (step - self.first_step) / (now - self.started)
            left = (self.num_steps - step) / rate
            self.say(f"step {step}/{self.num_steps}  {shown}  {left:.0f} s left")

    def say(self, line: str) -> None:
        """A line of its own, above the bar."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        self.bar.close()
