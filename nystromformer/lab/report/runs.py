"""The runs to report: found by their config.json, read, checked, never written to."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config, ConfigError
from nystromformer.lab.objectives import is_rate
from nystromformer.lab.sweep.process import failure
from nystromformer.lab.workdir import CONFIG_FILE, RESULT_FILE, read_json, read_result
from nystromformer.training.files import METRICS_FILE

NOT_RUNS = {"checkpoints", "best", "events"}  # what lies inside a run


@dataclasses.dataclass(frozen=True)
class Run:
    """One workdir.

    Attributes:
      name: its path from the folder that holds all that was given, the same on every
        machine.
      config: group -> key -> value, what older configs lack filled in.
      result: what result.json says; empty while it is not there.
      metrics: the whole lines of metrics.jsonl, in order.
      failure: why a sweep gave it up, in one line.
    """

    name: str
    workdir: Path
    config: dict[str, Any]
    result: dict[str, Any]
    metrics: list[dict[str, Any]]
    failure: str | None = None

    @property
    def step(self) -> int:
        """How far it is; unfinished, as its metrics tell."""
        if self.result:
            return self.config["train"]["num_steps"]
        return max((row["step"] for row in self.metrics), default=0)

    def curve(self, split: str, name: str) -> dict[int, float]:
        """Step -> value of one metric, where it is a finite number."""
        rows = [row for row in self.metrics if row["split"] == split]
        return {row["step"]: row[name] for row in rows if is_finite(row.get(name))}


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be averaged and drawn."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # an integer may be larger


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Every run in these folders and below them, each once, sorted by name.

    Returns the runs, and a line about each that cannot be read.

    Raises:
      ConfigError: a folder that is none or holds no run.
    """
    roots = [folder.expanduser().resolve() for folder in folders]
    workdirs = {workdir for root in roots for workdir in find_workdirs(root)}
    top = Path(os.path.commonpath([root.parent for root in roots]))
    runs, skipped = [], []
    for name, workdir in sorted((str(x.relative_to(top)), x) for x in workdirs):
        try:
            runs.append(read_run(workdir, name))
        except (ConfigError, OSError) as error:
            skipped.append(f"{name} is left out: {error}")
    return runs, skipped


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
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in NOT_RUNS]
        if CONFIG_FILE in files:
            found.append(Path(folder))
    if not found:
        raise ConfigError(
            f"{root} holds no run of scripts/train.py: no {CONFIG_FILE} in it or below"
        )
    return found


def read_run(workdir: Path, name: str) -> Run:
    """One run.

    Raises:
      ConfigError: a broken file, or a result that is not of this config.
    """
    config = _read_config(workdir / CONFIG_FILE)
    result = read_result(workdir) or {}
    if result:
        _check_result(result, config, workdir / RESULT_FILE)
    metrics = read_metrics(workdir / METRICS_FILE, config["train"]["num_steps"])
    why = None if result else failure(workdir)
    return Run(name, workdir, config, result, metrics, why)


def _read_config(path: Path) -> dict[str, Any]:
    """A checked config; options of another package's attention are taken as they are.

    Raises:
      ConfigError: it is none of this program's.
    """
    mapping = read_json(path)
    attention = mapping.get("attention") if isinstance(mapping, dict) else None
    name = attention.get("name") if isinstance(attention, dict) else None
    foreign = isinstance(name, str) and name not in ATTENTIONS
    try:
        checked = {**mapping, "attention": {"name": "none"}} if foreign else mapping
        config = Config.from_mapping(checked).to_mapping()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return {**config, "attention": attention} if foreign else config


def _check_result(result: dict[str, Any], config: Any, path: Path) -> None:
    """Raises ConfigError for numbers that cannot be, and for another run's result."""
    for key in ("floors", "versions", "data_sha256"):
        if not isinstance(result.setdefault(key, {}), dict):
            raise ConfigError(f"{path}: {key} must be a group, got {result[key]!r}")
    metric = result.setdefault("metric", "accuracy")
    of_metric = {key: result[key] for key in (f"validation_{metric}", f"test_{metric}")}
    for key, value in {**result["floors"], **of_metric}.items():
        if not is_finite(value) or (is_rate(metric) and not 0 <= value <= 1):
            raise ConfigError(f"{path}: {key} cannot be {value!r}")
    for key in ("test_examples", "best_step"):
        if not is_finite(result.get(key, 1)) or result.get(key, 1) < 1:
            raise ConfigError(f"{path}: {key} must be positive, got {result[key]!r}")
    ours = {group: config[group]["name"] for group in ("task", "attention")}
    for key, value in {**ours, "seed": config["train"]["seed"]}.items():
        if result.get(key, value) != value:
            raise ConfigError(
                f"{path} is of another run: {key} is {result[key]!r} there, {value!r} "
                f"in {CONFIG_FILE}"
            )


def read_metrics(path: Path, num_steps: int) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; none where there is no file yet.

    A last line that is half-written, as a killed run leaves it, is left out.

    Raises:
      ConfigError: any other line that is no row of metrics, or of a step beyond
        num_steps, by its number.
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
        step = row.get("step") if isinstance(row, dict) else None
        if type(step) is not int or not 0 <= step <= num_steps:
            raise ConfigError(
                f"{path}:{number} is no row of metrics: its step is not within 0 and "
                f"{num_steps}"
            )
        for name, value in row.items():
            if is_rate(name) and is_finite(value) and not 0 <= value <= 1:
                raise ConfigError(f"{path}:{number} is damaged: {name} is {value}")
        rows.append({"split": None, **row})
    return rows
