"""Measures the start of a training run, in a separate process, up to its first loss."""

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nystromformer.config import ConfigError
from nystromformer.experiments import markdown
from nystromformer.experiments.bench.summary import spread
from nystromformer.experiments.page import PAGE, open_folder, page, source
from nystromformer.experiments.sweep.grid import TRAIN
from nystromformer.experiments.sweep.process import Process, failure
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


def first_steps(flags: Any) -> None:
    """Writes the page and JSON that the flags of scripts/first_step.py ask for."""
    made_by, out = source(), open_folder(Path(flags.out).expanduser(), TITLE)
    configs, changes = TRAIN.parents[1] / "configs", flags.change
    rows = [
        {"task": task, "attention": attention, **{start: [] for start in STARTS}}
        for task, attention in dict.fromkeys(
            itertools.product(flags.task, flags.attention)
        )
    ]
    table = []
    for _ in range(flags.rounds):
        for row in rows:
            config = f"--config={configs}/{row['task']}.py:{row['attention']}"
            arguments = [config, *(f"--config.{change}" for change in changes)]
            with tempfile.TemporaryDirectory() as folder:
                for start in STARTS:
                    row[start].append(seconds_to_first_loss(arguments, Path(folder)))
        write_json(out / FILE, {**made_by, "rows": rows})
        body = (
            [
                f"{row['task']}, {row['attention']}",
                *(spread(row[x], ".1f") for x in STARTS),
            ]
            for row in rows
        )
        table = markdown.table(["seconds", *STARTS], body)
        write_text(out / PAGE, page(TITLE, made_by, [*table, NOTE]))
    print(*table, sep="\n")


def seconds_to_first_loss(arguments: Sequence[str], folder: Path) -> float:
    """Of a new process of train.py with these flags.

    The folder keeps what is compiled from one start to the next. ConfigError with the
    last line that the process said where it ended before.
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
