"""Finds the runs to report by their config.json, reads and checks them."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeGuard

from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.objectives import is_rate
from nystromformer.experiments.sweep.process import failure
from nystromformer.experiments.workdir import (
    CONFIG_FILE,
    RESULT_FILE,
    read_json,
    read_result,
)
from nystromformer.training.files import METRICS_FILE

NOT_RUNS = {"checkpoints", "best", "events"}  # what lies inside a run
GROUPS = ("floors", "versions", "data_sha256")  # of a result


@dataclasses.dataclass(frozen=True)
class Run:
    """One workdir."""

    name: str  # its path from the folder that holds all that was given
    workdir: Path
    config: dict[str, Any]  # group -> key -> value, what older ones lack filled in
    result: dict[str, Any]  # empty while it is not there
    metrics: list[dict[str, Any]]
    failure: str | None  # why a sweep gave it up, in one line

    @property
    def step(self) -> int:
        """The last step, read from the metrics if the run is unfinished."""
        if self.result:
            return self.config["train"]["num_steps"]
        return max((row["step"] for row in self.metrics), default=0)

    def curve(self, split: str, name: str) -> dict[int, float]:
        """Step -> value of one metric, for finite values."""
        rows = [row for row in self.metrics if row["split"] == split]
        return {row["step"]: row[name] for row in rows if is_finite(row.get(name))}


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether it is a number that can be averaged and drawn."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # an integer may be larger


def scale(metric: str) -> int:
    """Rates are shown in per cent."""
    return 100 if is_rate(metric) else 1


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Every run in these folders and below them, each once, sorted by name.

    Returns the runs, and a line about each that cannot be read.

    Raises:
      ConfigError: a folder that is none or holds no run.
    """
    roots, workdirs = [folder.expanduser().resolve() for folder in folders], set()
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"{root}: no such folder")
        files = [file.relative_to(root) for file in root.rglob(CONFIG_FILE)]
        found = {root / x.parent for x in files if not NOT_RUNS & {*x.parts}}
        if not found:
            raise ConfigError(
                f"{root} holds no run of scripts/train.py: no {CONFIG_FILE} in it or "
                "below"
            )
        workdirs |= found
    top = Path(os.path.commonpath([root.parent for root in roots]))
    runs, skipped = [], []
    for name, workdir in sorted((str(x.relative_to(top)), x) for x in workdirs):
        try:
            runs.append(read_run(workdir, name))
        except (ConfigError, OSError) as error:
            skipped.append(f"{name} is left out: {error}")
    return runs, skipped


def read_run(workdir: Path, name: str) -> Run:
    """One run; ConfigError for a broken file, or a result of another config."""
    config = _read_config(workdir / CONFIG_FILE)
    result = read_result(workdir) or {}
    if result:
        defaults = {"metric": "accuracy", "test_examples": sys.maxsize}
        result = {**defaults, **{group: {} for group in GROUPS}, **result}
        if not _is_result_of(config, result):
            raise ConfigError(f"{workdir / RESULT_FILE} is damaged or of another run")
    metrics = read_metrics(workdir / METRICS_FILE, config["train"]["num_steps"])
    why = None if result else failure(workdir)
    return Run(name, workdir, config, result, metrics, why)


def _read_config(path: Path) -> dict[str, Any]:
    """A checked config; another package's attention is taken as it is."""
    mapping = read_json(path)
    attention = mapping.get("attention") if isinstance(mapping, dict) else None
    name = attention.get("name") if isinstance(attention, dict) else None
    foreign = isinstance(name, str) and name not in ATTENTIONS
    try:
        checked = {**mapping, "attention": {"name": "identity"}} if foreign else mapping
        config = Config.from_mapping(checked).to_mapping()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return {**config, "attention": attention} if foreign else config


def _is_result_of(config: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether the numbers are possible, and the result is of this config."""
    if not all(isinstance(result[group], dict) for group in GROUPS):
        return False
    metric, examples = result["metric"], result["test_examples"]
    found = [result[f"{split}_{metric}"] for split in ("validation", "test")]
    possible = [
        is_finite(x) and (0 <= x <= 1 or not is_rate(metric))
        for x in (*found, *result["floors"].values())
    ]
    ours = {group: config[group]["name"] for group in ("task", "attention")}
    ours["seed"] = config["train"]["seed"]
    same = ours == {key: result[key] for key in ours}
    return same and all(possible) and is_finite(examples) and examples >= 1


def read_metrics(path: Path, num_steps: int) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; none if there is no file yet.

    A last line that is half-written, as a killed run leaves it, is left out.

    Raises:
      ConfigError: any other line that is no row of metrics, by its number.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                break
            raise ConfigError(f"{path}:{number} is not valid JSON ({error})") from error
        if not _is_row(row, num_steps):
            raise ConfigError(
                f"{path}:{number} is not a row of metrics of a run of {num_steps} steps"
            )
        rows.append({"split": None, **row})
    return rows


def _is_row(row: Any, num_steps: int) -> bool:
    if not isinstance(row, dict) or type(row.get("step")) is not int:
        return False
    rates = [x for name, x in row.items() if is_rate(name) and is_finite(x)]
    return 0 <= row["step"] <= num_steps and all(0 <= rate <= 1 for rate in rates)
