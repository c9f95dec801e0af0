"""The start of a training run, as a process of its own, up to its first loss."""

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.lab import markdown
from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.lab.sweep.grid import TRAIN
from nystromformer.lab.sweep.process import Process, failure
from nystromformer.training.files import METRICS_FILE, write_json, write_text

TITLE = "First step"
FILE = "first_step.json"
SECONDS_BETWEEN_LOOKS = 0.01
STARTS = ("cold", "warm")
NOTE = """
Seconds from the start of the process to the first loss: median (quartiles) of rounds
in which all take turns. Cold: no compiled program is on disk; warm: those of the cold
start just before.
"""


def first_steps(
    out: Path,
    tasks: Sequence[str],
    attentions: Sequence[str],
    changes: Sequence[str],
    rounds: int,
) -> None:
    """Writes README.md and first_step.json of each task with each attention.

    Args:
      out: the folder.
      tasks, attentions: names.
      changes: each GROUP.KEY=VALUE, of every config.
      rounds: in which all take turns.
    """
    made_by, out = source(), open_folder(out, TITLE)
    configs = TRAIN.parents[1] / "configs"
    rows = [
        {"task": task, "attention": attention, **{start: [] for start in STARTS}}
        for task, attention in dict.fromkeys(itertools.product(tasks, attentions))
    ]
    flags = [f"--config.{change}" for change in changes]
    for _, row in itertools.product(range(rounds), rows):
        config = f"--config={configs}/{row['task']}.py:{row['attention']}"
        with tempfile.TemporaryDirectory() as folder:
            for start in STARTS:
                seconds = seconds_to_first_loss([config, *flags], Path(folder))
                row[start].append(seconds)
        if row is rows[-1]:
            write_json(out / FILE, {**made_by, "rows": rows})
            write_text(out / PAGE, page(TITLE, made_by, [*table(rows), NOTE]))
    print(*table(rows), sep="\n")


def seconds_to_first_loss(arguments: Sequence[str], folder: Path) -> float:
    """Of a new process of train.py.

    Args:
      arguments: its flags.
      folder: keeps what is compiled from one start to the next.

    Raises:
      ConfigError: the process ended before; with the last line that it said.
    """
    with tempfile.TemporaryDirectory(dir=folder) as workdir:
        metrics = Path(workdir) / METRICS_FILE
        command = [sys.executable, str(TRAIN), *arguments, f"--workdir={workdir}"]
        command += ["--config.train.log_every=1"]
        env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder / "programs")}
        started = time.perf_counter()
        process = Process(command, Path(workdir), env)
        try:
            while (status := process.poll()) is None:
                if metrics.exists() and metrics.stat().st_size:
                    return time.perf_counter() - started
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            process.popen.kill()
            process.popen.wait()
        said = failure(Path(workdir)) or f"train.py ended with status {status}"
        raise ConfigError(said.removeprefix("error: "))


def table(rows: Sequence[Mapping]) -> list[str]:
    """Lines of Markdown: a row for each task and attention."""
    body = [
        [f"{row['task']}, {row['attention']}", *(_cell(row[start]) for start in STARTS)]
        for row in rows
    ]
    return markdown.table(["seconds", *STARTS], body)


def _cell(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "".join(f"{x:.1f}" for x in seconds)
    lower, median, upper = quartiles(seconds)
    return f"{median:.1f} ({lower:.1f}–{upper:.1f})"
