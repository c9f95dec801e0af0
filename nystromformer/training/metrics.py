"""The output of a training run: metrics.jsonl, TensorBoard events, a progress bar."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from etils import epath
from tqdm import tqdm

from nystromformer.training.devices import all_hosts_max, is_host_0

METRICS_FILE = "metrics.jsonl"
SECONDS_PER_CHUNK = 1.0  # between two looks at the clock, the signals and the metrics


def write_text(path: epath.PathLike, text: str) -> None:
    """Writes a file whole or not at all."""
    path = epath.Path(path)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


class MetricsWriter:
    """One JSON object a line in metrics.jsonl, and TensorBoard events on a disk.

    The first process writes. Rows after `step`, or of validations after `evaluated`,
    are dropped: a run that resumes there writes them again.
    """

    def __init__(self, workdir: epath.PathLike, step: int = 0, evaluated: int = -1):
        self.workdir, self.step = epath.Path(workdir), step
        self.path, self.events = self.workdir / METRICS_FILE, None
        self.rows: list[dict[str, Any]] = []
        last = {"train": step, "validation": evaluated}
        if is_host_0() and self.path.exists():
            rows = map(json.loads, self.path.read_text().splitlines())
            self.rows = [x for x in rows if x["step"] <= last.get(x["split"], -1)]

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Adds a row and writes the file; OSError if that is not possible."""
        if not is_host_0():
            return
        if self.rows and not self.path.exists():
            raise FileNotFoundError(f"{self.path} was deleted while this run trained")
        self.rows.append({"step": step, "split": split, **values})
        write_text(self.path, "".join(f"{json.dumps(x)}\n" for x in self.rows))
        if "://" in (folder := str(self.workdir / "events")):
            return
        if self.events is None:
            from tensorboardX import SummaryWriter  # takes a second to import

            purge = self.step + 1
            self.events = SummaryWriter(folder, purge_step=purge, flush_secs=10)
        for name, value in values.items():
            self.events.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        """Closes the events."""
        if self.events is not None:
            self.events.close()


class ChunkTimer:
    """The `size` of a chunk that takes about a second; at first 1, which is compiled.

    It is the same in every process. `seconds` is what the last chunk took.
    """

    def __init__(self, max_size: int):
        self.max_size, self.size, self.seconds = max_size, 1, 0.0
        self._compiled = False

    @contextlib.contextmanager
    def measure(self, num_steps: int) -> Iterator[None]:
        """Around the work on so many steps."""
        started = time.monotonic()
        yield
        self.seconds = time.monotonic() - started
        if self._compiled:
            size = round(SECONDS_PER_CHUNK / self.seconds * num_steps)
            self.size = all_hosts_max(min(max(size, 1), self.max_size))
        self._compiled = True


class Progress:
    """A bar with metrics, examples per second and time left; lines in a log file."""

    SECONDS_BETWEEN_LINES = 10.0

    def __init__(self, step: int, num_steps: int):
        # disable=None: no bar where the output is no terminal.
        self.bar = tqdm(
            total=num_steps, initial=step, unit="step", dynamic_ncols=True, disable=None
        )
        self.num_steps, self.first_step = num_steps, -1  # the first that is timed

    def update(self, step: int, values: dict[str, float], throughput: float) -> None:
        """Now at `step`, with the latest metrics and examples per second."""
        now = time.monotonic()
        if self.first_step < 0:
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
        """A line of its own, above the bar."""
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Ends the bar."""
        self.bar.close()
