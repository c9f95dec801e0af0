"""The output of a training run: metrics.jsonl, TensorBoard events, a progress bar."""

import contextlib
import io
import json
import sys
import time
from collections.abc import Iterator

from etils import epath
from tqdm import tqdm

from nystromformer.training.data import MAX_CHUNK
from nystromformer.training.devices import all_hosts_max, is_host_0

METRICS_FILE = "metrics.jsonl"
SECONDS_PER_CHUNK = 1.0  # between two looks at the clock, the signals and the metrics
SECONDS_PER_LINE = 10.0  # of the progress, where the output is no terminal


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
        self.path = epath.Path(workdir) / METRICS_FILE
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        rows, last = map(json.loads, lines), {"train": step, "validation": evaluated}
        self.rows = [x for x in rows if x["step"] <= last.get(x["split"], -1)]
        self.step, self.events = step, None

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Adds a row and writes the file; OSError if that is not possible."""
        self.rows.append({"step": step, "split": split, **values})
        if not is_host_0():
            return
        write_text(self.path, "".join(f"{json.dumps(x)}\n" for x in self.rows))
        if "://" in str(self.path):
            return
        if self.events is None:
            from tensorboardX import SummaryWriter  # takes a second to import

            folder = str(self.path.parent / "events")
            self.events = SummaryWriter(folder, purge_step=self.step + 1, flush_secs=10)
        for name, value in values.items():
            self.events.add_scalar(f"{split}/{name}", value, step)

    def close(self) -> None:
        if self.events:
            self.events.close()


class ChunkTimer:
    """The `size` of a chunk that takes about a second; the first, which compiles, is 1.

    It is the same in every process. `seconds` is what the last chunk took.
    """

    size, seconds = 1, 0.0

    @contextlib.contextmanager
    def measure(self, num_batches: int) -> Iterator[None]:
        """Around the work on so many batches."""
        started, is_first = time.monotonic(), not self.seconds
        yield
        self.seconds = time.monotonic() - started
        if not is_first:
            size = round(SECONDS_PER_CHUNK / self.seconds * num_batches)
            self.size = all_hosts_max(min(max(size, 1), MAX_CHUNK))


class Progress:
    """A bar with metrics, examples per second and time left; lines in a log file."""

    def __init__(self, step: int, num_steps: int):
        self.is_terminal = sys.stderr.isatty()
        every = 0.1 if self.is_terminal else SECONDS_PER_LINE
        file = None if self.is_terminal else io.StringIO()
        sizes = {"total": num_steps, "initial": step, "unit": "step", "file": file}
        sizes |= {"mininterval": every, "miniters": 1, "smoothing": 0}
        self.bar = tqdm(**sizes, dynamic_ncols=self.is_terminal)

    def update(self, step: int, values: dict[str, float], throughput: float) -> None:
        """Now at `step`, with the latest metrics and examples per second."""
        shown = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        shown += f"  {throughput:,.0f} examples/s"
        self.bar.set_postfix_str(shown, refresh=False)
        if self.bar.update(step - self.bar.n) and not self.is_terminal:
            say(str(self.bar))


def say(line: str) -> None:
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()
