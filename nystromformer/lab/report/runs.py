"""The runs to report: found by their config.json, read, checked, never written to."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from lra_tasks.task import TASKS
from nystromformer.config import Config, ConfigError
from nystromformer.lab.sweep.process import failure
from nystromformer.lab.workdir import CONFIG_FILE, RESULT_FILE, read_config, read_result
from nystromformer.training.files import METRICS_FILE

NOT_RUNS = {"checkpoints", "events"}  # what lies inside a run


@dataclasses.dataclass(frozen=True)
class Run:
    """One workdir.

    Attributes:
      name: its path from the folder that holds all that was given, the same on every
        machine.
      result: what result.json says, None while it is not there.
      metrics: the whole lines of metrics.jsonl, in order.
      failure: why a sweep gave it up, in one line.
    """

    name: str
    workdir: Path
    config: Config
    result: dict[str, Any] | None
    metrics: list[dict[str, Any]]
    failure: str | None = None

    @property
    def seed(self) -> int:
        """What tells it from the other runs of its point."""
        return self.config.train.seed

    @property
    def step(self) -> int:
        """How far it is; unfinished, as its metrics tell."""
        if self.result:
            return self.config.train.num_steps
        return max((row["step"] for row in self.metrics), default=0)

    def curve(self, split: str, name: str) -> dict[int, float]:
        """Step -> value of one metric, where it is a finite number."""
        rows = [row for row in self.metrics if row["split"] == split]
        return {row["step"]: row[name] for row in rows if is_finite(row.get(name))}


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be averaged and drawn."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # an integer may be larger


def read_runs(folders: Iterable[Path]) -> list[Run]:
    """Every run in these folders and below them, each once, sorted by name.

    Raises:
      ConfigError: a folder that is none or holds no run, or a broken file; one line
        that names it.
    """
    roots = [folder.expanduser().resolve() for folder in folders]
    workdirs = {workdir for root in roots for workdir in find_workdirs(root)}
    top = Path(os.path.commonpath([root.parent for root in roots]))
    named = sorted((str(workdir.relative_to(top)), workdir) for workdir in workdirs)
    return [read_run(workdir, name) for name, workdir in named]


def find_workdirs(root: Path) -> list[Path]:
    """The folders at or below `root` that hold a config.json.

    Raises:
      ConfigError: there is no such folder, or no run in it.
    """
    if not root.exists():
        raise ConfigError(f"{root}: no such folder")
    if not root.is_dir():
        raise ConfigError(f"{root} is a file; name the folder of a run, or one above")
    found = []
    for folder, below, files in os.walk(root, onerror=_raise):
        below[:] = [name for name in below if name not in NOT_RUNS]
        if CONFIG_FILE in files:
            found.append(Path(folder))
    if not found:
        raise ConfigError(
            f"{root} holds no run of scripts/train.py: no {CONFIG_FILE} in it or below"
        )
    return found


def _raise(error: OSError) -> None:
    raise error


def read_run(workdir: Path, name: str) -> Run:
    """One run.

    Raises:
      ConfigError: a broken file, an unknown task, or a result that is not of this
        config.
    """
    config, result = read_config(workdir), read_result(workdir)
    if config.task.name not in TASKS:
        raise ConfigError(
            f"{workdir / CONFIG_FILE}: unknown task {config.task.name!r}; known: "
            f"{', '.join(TASKS)}"
        )
    if result:
        _check_result(result, config, workdir / RESULT_FILE)
    metrics = read_metrics(workdir / METRICS_FILE)
    why = None if result else failure(workdir)
    return Run(name, workdir, config, result, metrics, why)


def _check_result(result: dict[str, Any], config: Config, path: Path) -> None:
    """Raises ConfigError for numbers that cannot be, and for another run's result."""
    for key in ("floors", "versions", "data_sha256"):
        if not isinstance(result.get(key, {}), dict):
            raise ConfigError(f"{path}: {key} must be a group, got {result[key]!r}")
    floors = result["floors"].items()
    accuracies = {f"floor {name!r}": value for name, value in floors}
    for key in ("validation_accuracy", "test_accuracy"):
        accuracies[key] = result[key]
    for key, value in accuracies.items():
        if not is_finite(value) or not 0 <= value <= 1:
            raise ConfigError(f"{path}: {key} must be within 0 and 1, got {value!r}")
    for key in ("test_examples", "best_step"):
        if not is_finite(result[key]) or result[key] < 1:
            raise ConfigError(f"{path}: {key} must be positive, got {result[key]!r}")
    ours = {
        "task": config.task.name,
        "attention": config.attention.name,
        "seed": config.train.seed,
    }
    for key, value in ours.items():
        if result[key] != value:
            raise ConfigError(
                f"{path} is of another run: {key} is {result[key]!r} there, {value!r} "
                f"in {CONFIG_FILE}"
            )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; none where there is no file yet.

    A last line that is half-written, as a killed run leaves it, is left out.

    Raises:
      ConfigError: any other line that is no row of metrics, by its number.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}:{number} is not valid JSON ({error})") from error
        if not isinstance(row, dict) or type(row.get("step")) is not int:
            raise ConfigError(f"{path}:{number} is no row of metrics: it has no step")
        rows.append({"split": None, **row})
    return rows
