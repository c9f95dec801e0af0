"""The output of a training run: metrics.jsonl, TensorBoard events, a progress bar."""

import io
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from etils import epath
from tqdm import tqdm

from nystromformer.run_files import METRICS_FILE, complete_lines, parse_json, write_text
from nystromformer.training.devices import is_host_0
from nystromformer.validation import is_in_bucket

SECONDS_PER_LINE = 10.0  # between lines of progress, where the output is no terminal


def say(line: str) -> None:
    """Prints a line, at once and without disturbing a progress bar."""
    tqdm.write(line, file=sys.stdout)
    sys.stdout.flush()


class MetricsWriter:
    """Writes the metrics of a run: metrics.jsonl and, on a disk, TensorBoard events.

    A line of metrics.jsonl is a JSON object with `step`, `split` and the metrics. Only
    the first process writes.

    Rows that a resumed run will measure again are cut off by its first write: rows of
    training after `step`, of validation after `evaluated`, and all rows of the test;
    and so is half a row, which a run leaves that is killed while it writes.

    Args:
      workdir: the folder of the run, which may be in a bucket.
      step: the step at which the run begins.
      evaluated: the last step whose validation the run knows.
      settings: key -> value, for TensorBoard's page HPARAMS, which compares runs.
      score: the metric of validation that this page shows beside the settings.

    Raises:
      ConfigError: if a line of metrics.jsonl is damaged.
    """

    def __init__(
        self,
        workdir: epath.PathLike,
        step: int = 0,
        evaluated: int = -1,
        settings: Mapping[str, Any] | None = None,
        score: str = "loss",
    ):
        self.settings = settings
        self.score = score
        self.path = epath.Path(workdir) / METRICS_FILE
        self.step = step
        self.events: Any = None
        self.rows: list[dict[str, Any]] = []
        last_steps = {"train": step, "validation": evaluated}
        self.has_written = False
        if self.path.exists():
            for line in complete_lines(self.path):
                row = parse_json(line, self.path)
                if row["step"] <= last_steps.get(row["split"], -1):
                    self.rows.append(row)

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Adds a row of metrics; OSError if the file cannot be written."""
        self.rows.append({"step": step, "split": split, **values})
        if not is_host_0():
            return
        if self.has_written and not is_in_bucket(self.path):
            with self.path.open("a") as file:
                file.write(_to_lines(self.rows[-1:]))
        else:
            # The first write cuts off old rows, and a bucket cannot append.
            write_text(self.path, _to_lines(self.rows))
            self.has_written = True

        if is_in_bucket(self.path):
            return
        if self.events is None:
            self.events = self._open_events()
        for name, value in values.items():
            self.events.add_scalar(f"{split}/{name}", value, step)

    def median(self, name: str) -> float:
        """The median of a metric over the rows that have it."""
        return statistics.median(row[name] for row in self.rows if name in row)

    def close(self) -> None:
        """Writes the last events."""
        if self.events is not None:
            self.events.close()

    def _open_events(self) -> Any:
        # The import takes a second, which a run has only once it has metrics.
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        events: Any = SummaryWriter(
            str(self.path.parent / "events"),
            purge_step=self.step + 1,
            flush_secs=10,
        )
        if self.settings:
            hyperparameters = {
                key: value if isinstance(value, bool | int | float) else str(value)
                for key, value in self.settings.items()
            }
            score = {f"validation/{self.score}": 0.0}
            for summary in hparams(hyperparameters, score):
                events.file_writer.add_summary(summary)
        return events


def _to_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text of these rows, which ends in a line break."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


class Bar:
    """A progress bar; where the output is no terminal, a line now and then instead.

    Only the first process shows it.

    Args:
      done: what is done at the start.
      total: what there is to do.
      seconds_per_line: between lines, where the output is no terminal.
      style: further options of tqdm.
    """

    def __init__(
        self,
        done: float,
        total: int,
        seconds_per_line: float,
        **style: Any,
    ):
        self.is_terminal = sys.stderr.isatty()
        self.bar = tqdm(
            total=total,
            initial=done,
            disable=not is_host_0(),
            file=None if self.is_terminal else io.StringIO(),
            dynamic_ncols=self.is_terminal,
            mininterval=0.1 if self.is_terminal else seconds_per_line,
            miniters=0,
            smoothing=0,
            **style,
        )

    def show(self, done: float, text: str, at_once: bool = False) -> None:
        """Shows what is done by now, and a text behind it.

        Args:
          at_once: does not wait for the time of the next line.
        """
        self.bar.set_postfix_str(text, refresh=False)
        is_due = self.bar.update(done - self.bar.n)
        if (is_due or at_once) and not self.is_terminal:
            say(str(self.bar))

    def close(self) -> None:
        """Leaves the bar as it is."""
        self.bar.close()


class Progress(Bar):
    """The bar of a training, with metrics, examples per second and time left."""

    def __init__(self, step: int, num_steps: int):
        super().__init__(step, num_steps, SECONDS_PER_LINE, unit="step")

    def update(self, step: int, values: dict[str, float], throughput: float) -> None:
        """Shows the step, the latest metrics and the examples per second."""
        metrics = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        self.show(step, f"{metrics}  {throughput:,.0f} examples/s")
