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
from nystromformer.experiments.experiment import is_rate
from nystromformer.experiments.workdir import NUMBERLESS

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

    Columns are those of `read_run` and `name_runs`, and `column`, the heading.
    ConfigError for a folder without runs, seeds of different test data, or equal runs.
    """
    found = {folder: {*folder.rglob("config.json")} for folder in folders}
    if empty := ", ".join(str(folder) for folder, files in found.items() if not files):
        raise ConfigError(f"no runs in {empty}: no config.json there or below")
    files = sorted(set().union(*found.values()))
    frame: Frame = pd.DataFrame([row for x in files for row in read_run(x.parent)])
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


def read_run(workdir: Path) -> list[dict[str, Any]]:
    """A row for the metric that chose the weights and each other rate with floors.

    `score` is its test value; `facts` are the preset, what the command line changes,
    device and commit. Of `source_dir` only the last part is compared.
    """
    config = json.loads((workdir / "config.json").read_text())
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
    words = ",".join(x for x in config["preset"].split(",") if x != subset)
    config["preset"] = words or ("paper" if config["preset"] else None)
    changes = dict(re.findall(r"--config\.([\w.]+)[= ]([^\s']*)", found["command"]))
    source = {name: found[name] for name in ("device", "commit")}
    run = {
        "run": str(workdir),
        **found,
        "task": subset or task["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": seed,
        "settings": flatten_dict(config, sep="."),
        "test_data": (found.get("data_sha256") or {}).get("test"),
        "facts": {"preset": config["preset"], **changes, **source},
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
    attention and preset, and what not all commands of a task change; an attention's
    options are named in all tasks if in one. Runs of one label differ in their seed.
    """
    settings = pd.DataFrame([*frame["settings"]])
    text: Frame = settings.drop(columns=[*UNNAMED & {*settings}]).map(repr)
    kind = [frame["task"], frame["attention"], text["preset"]]
    changes: Frame = pd.DataFrame([*frame["facts"]]).reindex(columns=text.columns)
    uneven = changes.map(str).groupby(frame["task"]).transform("nunique") > 1
    differs = (uneven & changes.notna()).groupby(kind).transform("any")
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
