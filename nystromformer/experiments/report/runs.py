"""Runs as a data frame, named by the settings that tell them apart."""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from flax.traverse_util import flatten_dict

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.experiments.metric_names import is_rate
from nystromformer.experiments.workdir import CONFIG_FILE, NUMBERLESS, PLAN_FILE

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all
UNNAMED = NUMBERLESS | {"task.name", "attention.name", "train.seed"}  # said anyway
DATA = ("preset", "task.")  # keys of settings that may change the floors
PHRASES = {
    "preset": "{} preset",
    "attention.num_landmarks": "{} landmarks",
    "attention.conv_kernel_size": "convolution of {}",
    "train.num_steps": "{} steps",
    "train.init_from": "from {}",
}
UNFINISHED = {"command": "", "device": None, "commit": None, "metric": None}
UNFINISHED |= {"floors": {}, "score": math.nan, "test_examples": math.nan}


def read_runs(folders: Iterable[Path]) -> Frame:
    """The rows of all runs in these folders and below, in the order of the tables.

    The runs that a sweep has planned there are among them, begun or not.

    Columns are those of `read_run` and `name_runs`, and `column`, the heading.
    ConfigError for a folder without runs, seeds of different test data, or equal runs.
    """
    configs: dict[Path, Any] = {}
    for folder in folders:
        below = find_configs(folder)
        if not below:
            raise ConfigError(f"no runs in {folder}: no config.json there or below")
        configs |= below
    rows = [row for path in sorted(configs) for row in read_run(path, configs[path])]
    frame: Frame = pd.DataFrame(rows)
    known = frame.groupby(["task", "objective"])["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(known).fillna("accuracy")
    factor, value = frame["metric"].map(scale), frame["score"]
    frame["score"] = factor * value
    binomial = (value * (1 - value) / frame["test_examples"]) ** 0.5
    of_examples = frame["metric"].isin(["accuracy", "sop_accuracy"])
    frame["score_sd"] = (factor * binomial).where(of_examples)
    frame["column"] = list(map(heading, frame["task"], frame["metric"]))
    hide_seeds(frame)
    frame["label"], frame["data"] = name_runs(frame)
    for _, data in frame.groupby(["column", "label"])["test_data"]:
        if len(one := data.dropna().drop_duplicates()) > 1:
            raise ConfigError(f"test data differ: {', '.join(frame['run'][one.index])}")
    same = frame.duplicated(["column", "label", "seed"], keep=False)
    if twice := ", ".join(frame["run"][same]):
        raise ConfigError(f"equal settings and seed, omit one: {twice}")
    place = ["attention", "label", "task", "seed"]
    return frame.sort_values(place, key=lambda of: of.map(_place), kind="stable")


def find_configs(folder: Path) -> dict[Path, Any]:
    """The workdir and the config of each run in or below a folder.

    Runs that a sweep has planned and not begun are among them.
    """
    configs = {}
    for plan in folder.rglob(PLAN_FILE):
        for name, config in json.loads(plan.read_text()).items():
            configs[plan.parent / name] = config
    for file in folder.rglob(CONFIG_FILE):
        configs[file.parent] = json.loads(file.read_text())
    return configs


def read_run(workdir: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for the metric that chose the weights and each other rate with floors.

    `score` is its test value; `presets` are the words that config.json has; `overrides`
    are what the command line changed in them. Of `source_dir` only the last part is
    compared.
    """
    if not {"preset", "objective"} <= {*config}:
        raise ConfigError(f"{workdir}/config.json was not written by scripts/train.py")
    result, metrics = (
        file.read_text() if (file := workdir / name).exists() else ""
        for name in ("result.json", "metrics.jsonl")
    )
    found = UNFINISHED | json.loads(result or "{}")
    others = found.pop("other_floors", {})
    floors = {found["metric"]: found["floors"]} if result else {}
    floors |= {metric: rules for metric, rules in others.items() if is_rate(metric)}
    curves = [json.loads(line) for line in metrics.splitlines()]
    task, seed = config["task"], config["train"]["seed"]
    task["source_dir"] = Path(task.get("source_dir") or "").name or None
    subset = task.get("subset")  # of GLUE: a column of its own, and a preset's name
    presets = config["preset"]
    words = ",".join(x for x in presets.split(",") if x != subset)
    config["preset"] = words or ("paper" if presets else None)
    overrides = config.pop("overrides", {})  # which older runs do not have
    run = {
        "run": str(workdir),
        **found,
        "task": subset or task["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": seed,
        "settings": flatten_dict(config, sep="."),
        "test_data": (found.get("data_sha256") or {}).get("test"),
        "presets": presets,
        "overrides": overrides,
        "curves": curves,
        "step": curves[-1]["step"] if curves else 0,
        "finished": bool(result),
    }
    return [
        run | {"metric": metric, "floors": rules, "score": found[f"test_{metric}"]}
        for metric, rules in floors.items()
    ] or [run]


def hide_seeds(frame: Frame) -> None:
    """Writes seed* for a run's seed in a folder that no other seed of its row uses."""
    for key in ("train.init_from", "task.tokenizer"):
        texts = pd.Series([x.get(key) for x in frame["settings"]])
        users = frame["seed"].groupby([texts, frame["task"], frame["attention"]])
        alone = users.transform("nunique") == 1
        for seed, settings in frame.loc[alone, ["seed", "settings"]].to_numpy():
            settings[key] = re.sub(rf"seed{seed}(?!\d)", "seed*", settings[key])


def name_runs(frame: Frame) -> tuple[list[str], list[str]]:
    """The label of each run, and the words in it on data.

    A label has the preset, if there are several, what differs among the runs of a task,
    attention and preset, and the overrides that not all runs of a task have; an
    attention's options are named in all tasks if in one. Runs of one label differ in
    their seed.
    """
    settings = pd.DataFrame([*frame["settings"]])
    text: Frame = settings.drop(columns=[*UNNAMED & {*settings}]).map(repr)
    kind = [frame["task"], frame["attention"], text["preset"]]
    overrides: Frame = pd.DataFrame([*frame["overrides"]]).reindex(columns=text.columns)
    uneven = overrides.map(str).groupby(frame["task"]).transform("nunique") > 1
    differs = (uneven & overrides.notna()).groupby(kind).transform("any")
    differs |= text.groupby(kind).transform("nunique") > 1
    options = [key for key in text if key.startswith("attention.")]
    differs[options] = differs[options].groupby(frame["attention"]).transform("any")
    differs["preset"] = text["preset"].nunique() > 1
    labels, data = [], []
    for i, run in frame["settings"].items():
        named = {
            key: PHRASES.get(key, f"{key.rpartition('.')[2]} {{}}").format(run[key])
            for key in text
            if differs.at[i, key] and run.get(key) is not None
        }
        labels.append(", ".join([frame.at[i, "attention"], *named.values()]))
        data.append(", ".join(x for key, x in named.items() if key.startswith(DATA)))
    return labels, data


def heading(what: str, metric: str) -> str:
    """As in "listops accuracy, %"."""
    return f"{what} {metric.replace('_', ' ')}{', %' * is_rate(metric)}"


def scale(metric: str) -> int:
    """Rates are shown in per cent."""
    return 100 if is_rate(metric) else 1


def _place(name: Any) -> str:
    """The sort key: as in the tables of attentions and tasks, then numbers by value."""
    known = [*ATTENTIONS, *TASKS]
    rank = known.index(name) if name in known else len(known)
    return re.sub(r"\d+", lambda number: number[0].zfill(9), f"{rank} {name}")
