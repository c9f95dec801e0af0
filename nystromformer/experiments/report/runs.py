"""Runs as a data frame: a row each, named by the settings that tell it from others."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.experiments.experiment import is_rate

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all
GROUPS = ("task", "objective", "model", "attention", "optimizer", "train")
IRRELEVANT = {  # said anyway, or without a number: where data lie, what is written when
    *("task.name", "attention.name", "train.seed", "task.data_dir", "task.source_dir"),
    *("task.num_workers", "train.log_every", "train.checkpoint_every"),
}
INSIDE = {"checkpoints", "best", "events"}  # folders of a run
UNKNOWN = {"floors": {}, "other_floors": {}, "fraction_exact": 0.0, "command": ""}
UNKNOWN |= dict.fromkeys(("device", "commit", "metric", "score", "score_sd", "floor"))
LANDMARKS = "attention.num_landmarks"
PHRASES = {
    "preset": "{} preset",
    LANDMARKS: "{} landmarks",
    "attention.conv_kernel_size": "convolution of {}",
    "train.num_steps": "{} steps",
    "train.init_from": "from {}",
}


def read_runs(folders: Iterable[Path]) -> tuple[Frame, list[str]]:
    """All runs in these folders and below, in the order of the tables.

    Columns are those of result.json and of `read_run`, and
      named: the settings that tell it from the others, "group.key" -> value;
      label: attention and these in words: runs of one label differ in the seed alone;
      place: sort key of the label.

    Returns the frame, and the runs left out: task, label and seed are another's.

    Raises:
      ConfigError: no run there, or the config of something else.
    """
    found = [file for folder in folders for file in sorted(folder.rglob("config.json"))]
    files = {file.resolve(): file for file in found if not INSIDE & {*file.parts}}
    if not files:
        raise ConfigError("no runs there: no config.json in these folders or below")
    rows = [read_run(file.parent) for file in files.values()]
    known = {(x["task"], x["objective"]): x["metric"] for x in rows if x["finished"]}
    for row, named in zip(rows, names(pd.DataFrame(rows)), strict=True):
        metric = known.get((row["task"], row["objective"]), "accuracy")
        row |= {"metric": row["metric"] or metric, "named": named}
        row["label"] = label(row["attention"], named)
        sizes = [x if isinstance(x, int | float) else 0 for x in named.values()]
        row["place"] = (_rank(row["attention"], ATTENTIONS), sizes, row["label"])
        row["order"] = (_rank(row["data"], TASKS), row["task"], row["metric"])
        row["order"] += (row["place"], row["seed"], not row["finished"])
    frame: Frame = pd.DataFrame(sorted(rows, key=lambda row: row["order"]))
    double = frame.duplicated(["task", "label", "seed"])
    return frame[~double].reset_index(drop=True), list(frame["run"][double])


def _rank(name: str, known: Iterable[str]) -> tuple[int, str]:
    return [*known, name].index(name), name


def read_run(workdir: Path) -> dict[str, Any]:
    """One run as a row; `score`, the test value of its metric, is in %, if a rate."""
    config = json.loads((workdir / "config.json").read_text())
    if not {*GROUPS, "preset"} <= {*config}:
        raise ConfigError(f"{workdir}/config.json was not written by scripts/train.py")
    text, metrics, failed = (
        file.read_text() if (file := workdir / name).exists() else ""
        for name in ("result.json", "metrics.jsonl", "failed.txt")
    )
    result = {"run": str(workdir), **UNKNOWN, **json.loads(text or "{}")}
    curves = [json.loads(x) for x in metrics[: metrics.rfind("\n") + 1].splitlines()]
    task, seed = config["task"], config["train"]["seed"]
    subset = task.get("subset")  # of GLUE: a column of its own, and a preset's name
    preset = ",".join(x for x in config["preset"].split(",") if x != subset)
    flat = {f"{x}.{key}": value for x in GROUPS for key, value in config[x].items()}
    settings = {"preset": preset or ("paper" if config["preset"] else None)} | {
        key: re.sub(rf"seed{seed}(?!\d)", "seed*", x) if isinstance(x, str) else x
        for key, x in flat.items()
        if key not in IRRELEVANT
    }
    given = re.findall(r" '?--config\.([\w.]+)", result["command"])
    if metric := result["metric"]:
        value = result[f"test_{metric}"]
        result["score"], result["score_sd"] = scale(metric) * value, _sd(value, result)
        result["floor"] = floor_reached(value, result)
    return result | {
        "data": task["name"],
        "task": subset or task["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": seed,
        "settings": settings,
        "changed": [key for key in dict.fromkeys(given) if key in settings],
        "num_steps": config["train"]["num_steps"],
        "curves": curves,
        "step": curves[-1]["step"] if curves else 0,
        "failed": failed.strip() or None,
        "finished": bool(text),
    }


def scale(metric: str) -> int:
    """Rates are shown in per cent."""
    return 100 if is_rate(metric) else 1


def floor_reached(value: float, result: Mapping[str, Any]) -> str | None:
    """The floor at which a run with this test value is stuck, if any.

    For a rate, a floor within two standard deviations, or the nearest where the value
    is below all; for another metric, which is the better the lower, the nearest where
    the value is above all.
    """
    floors, rate = result["floors"], is_rate(result["metric"])
    if not floors:
        return None
    name = min(floors, key=lambda name: abs(floors[name] - value))
    near = 100 * abs(value - floors[name]) <= 2 * _sd(floors[name], result)
    worst = value <= min(floors.values()) if rate else value >= max(floors.values())
    return name if near or worst else None


def _sd(rate: float, result: Mapping[str, Any]) -> float:
    """The binomial one over the test examples, in points; NaN for what is no rate."""
    variance = rate * (1 - rate) if is_rate(result["metric"]) else math.nan
    return 100 * math.sqrt(variance / result["test_examples"])


def names(frame: Frame) -> list[dict[str, Any]]:
    """The settings that name each run, "group.key" -> value; None goes unsaid.

    They are the preset, if the report has several, and the keys that differ among the
    runs of one task, attention and preset. An attention's options are named in all
    tasks if they are in one, and if a command line changes them.
    """
    rows = [{key: repr(x) for key, x in run.items()} for run in frame["settings"]]
    text: Frame = pd.DataFrame(rows)
    alike = [frame["task"], frame["attention"], text["preset"]]
    differs = text.groupby(alike).transform("nunique") > 1
    options = [key for key in text if key.startswith("attention.")]
    for i, changed in enumerate(frame["changed"]):
        differs.loc[i, [key for key in changed if key in options]] = True
    of_attention = differs[options].groupby(frame["attention"])
    differs[options] = of_attention.transform("any")
    differs["preset"] = text["preset"].nunique() > 1
    return [
        {key: x for key, x in run.items() if differs.at[i, key] and x is not None}
        for i, run in enumerate(frame["settings"])
    ]


def label(attention: str, named: Mapping[str, Any], without: str = "") -> str:
    """As in "nystrom, 64 landmarks"; without one key's words."""
    words = [phrase(*item) for item in named.items() if item[0] != without]
    return ", ".join([attention, *words])


def phrase(key: str, value: Any) -> str:
    """One setting in words."""
    text = f"{value:,}" if type(value) is int else str(value)
    return PHRASES.get(key, f"{key.rpartition('.')[2]} {{}}").format(text)
