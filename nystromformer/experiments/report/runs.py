"""Runs as a data frame: a row each, named by the settings that tell it from others."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.experiments.experiment import is_rate

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all
GROUPS = ("task", "objective", "model", "attention", "optimizer", "train")
UNNAMED = {  # said anyway, or without a number: where data lie, what is written when
    *("task.name", "attention.name", "train.seed", "task.data_dir", "task.source_dir"),
    *("task.num_workers", "train.log_every", "train.checkpoint_every"),
}
UNKNOWN = {"command": "", "floors": {}, "other_floors": {}}  # until a run is finished
UNKNOWN |= dict.fromkeys(("metric", "score", "score_sd", "device", "commit"))
PHRASES = {
    "preset": "{} preset",
    "attention.num_landmarks": "{} landmarks",
    "attention.conv_kernel_size": "convolution of {}",
    "train.num_steps": "{} steps",
    "train.init_from": "from {}",
}


def read_runs(folders: Iterable[Path]) -> tuple[Frame, list[str]]:
    """All runs in these folders and below, in the order of the tables.

    Columns are those of result.json, of `read_run` and of `name_runs`. Returns also the
    runs left out: task, label and seed are another's. ConfigError if there are none.
    """
    files = sorted({x for folder in folders for x in folder.rglob("config.json")})
    if not files:
        raise ConfigError("no runs there: no config.json in these folders or below")
    frame: Frame = pd.DataFrame([read_run(file.parent) for file in files])
    known = frame.groupby(["task", "objective"])["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(known).fillna("accuracy")
    name_runs(frame)
    frame = frame.iloc[sorted(frame.index, key=lambda i: _place(frame.loc[i]))]
    double = frame.duplicated(["task", "label", "seed"])
    return frame[~double].reset_index(drop=True), [*frame["run"][double]]


def read_run(workdir: Path) -> dict[str, Any]:
    """One run as a row; `score`, the test value of its metric, is in %, if a rate."""
    config = json.loads((workdir / "config.json").read_text())
    if not {*GROUPS, "preset"} <= {*config}:
        raise ConfigError(f"{workdir}/config.json was not written by scripts/train.py")
    result, metrics = (
        file.read_text() if (file := workdir / name).exists() else ""
        for name in ("result.json", "metrics.jsonl")
    )
    row = {"run": str(workdir), **UNKNOWN, **json.loads(result or "{}")}
    if metric := row["metric"]:
        value = row[f"test_{metric}"]
        variance = value * (1 - value) if is_rate(metric) else math.nan
        row["score"] = scale(metric) * value
        row["score_sd"] = 100 * math.sqrt(variance / row["test_examples"])
    curves = [json.loads(line) for line in metrics.splitlines()]
    task, seed = config["task"], config["train"]["seed"]
    subset = task.get("subset")  # of GLUE: a column of its own, and a preset's name
    words = ",".join(x for x in config["preset"].split(",") if x != subset)
    preset = words or ("paper" if config["preset"] else None)
    settings = {"preset": preset}
    for key, x in ((f"{g}.{k}", x) for g in GROUPS for k, x in config[g].items()):
        if key not in UNNAMED:  # runs that start from one with their own seed are alike
            own = isinstance(x, str)
            settings[key] = re.sub(rf"seed{seed}(?!\d)", "seed*", x) if own else x
    changes = re.findall(r"--config\.([\w.]+=[^\s']*)", row["command"])
    return row | {
        "task": subset or task["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": seed,
        "settings": settings,
        "facts": [f"preset={preset or '—'}", *changes, row["device"], row["commit"]],
        "curves": curves,
        "step": curves[-1]["step"] if curves else 0,
        "finished": bool(result),
    }


def name_runs(frame: Frame) -> None:
    """Adds `named`, the settings that name a run as key -> words, and its `label`.

    They are the preset, if the report has several, and what differs among the runs of
    one task, attention and preset; an attention's options are named in all tasks if
    they are in one. Runs of one label differ in the seed alone.
    """
    text: Frame = pd.DataFrame([*frame["settings"]]).map(repr)
    groups = text.groupby([frame["task"], frame["attention"], text["preset"]])
    differs = groups.transform("nunique") > 1
    options = [key for key in text if key.startswith("attention.")]
    of_attention = differs[options].groupby(frame["attention"])
    differs[options] = of_attention.transform("any")
    differs["preset"] = text["preset"].nunique() > 1
    frame["named"] = [
        {k: phrase(k, x) for k, x in run.items() if differs.at[i, k] and x is not None}
        for i, run in frame["settings"].items()
    ]
    words = frame["named"].map(lambda named: "".join(f", {x}" for x in named.values()))
    frame["label"] = frame["attention"] + words


def phrase(key: str, value: Any) -> str:
    """One setting in words."""
    text = f"{value:,}" if type(value) is int else str(value)
    return PHRASES.get(key, f"{key.rpartition('.')[2]} {{}}").format(text)


def scale(metric: str) -> int:
    """Rates are shown in per cent."""
    return 100 if is_rate(metric) else 1


def _place(run: Any) -> tuple[Any, ...]:
    """The sort key of a run: by attention, numbers in the label, task and seed."""
    attention, task = [*ATTENTIONS, run["attention"]], [*TASKS, run["task"]]
    sizes = [int(x.replace(",", "")) for x in re.findall(r"\d[\d,]*", run["label"])]
    place = attention.index(run["attention"]), sizes, run["label"]
    at = task.index(run["task"]), run["task"], run["metric"]
    return *place, *at, run["seed"], not run["finished"]
