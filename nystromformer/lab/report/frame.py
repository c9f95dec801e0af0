"""The runs as a data frame: one row a run, named by what it differs in from the others.

A row has the flattened config ("group.key" columns) and what the run has found. Runs
that differ in nothing but the seed are one point, and only they may be averaged;
whatever else differs (preset, length, steps, an option of the attention) becomes part
of the point's name.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.lab.report.presets import flatten, is_paper, nearest_preset
from nystromformer.lab.report.runs import Run, is_finite, is_rate, scale

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all
SEED, PRESET, NUM_LANDMARKS = "train.seed", "preset", "attention.num_landmarks"
# What changes no number: where data lie, how they are made, what is written when.
IRRELEVANT = {
    *("task.data_dir", "task.source_dir", "task.num_workers"),
    *("train.log_every", "train.checkpoint_every"),
}
WORDS = {
    PRESET: "{} preset",
    NUM_LANDMARKS: "{} landmarks",
    "attention.num_pinv_iters": "{} iterations",
    "attention.num_features": "{} features",
    "attention.num_hashes": "{} hashes",
    "attention.conv_kernel_size": "convolution of {}",
    "attention.window": "window {}",
    "task.max_length": "length {}",
    "train.batch_size": "batch {}",
    "train.num_steps": "{} steps",
    "train.micro_batches": "{} parts",
    "train.length_buckets": "{} lengths",
    "train.init_from": "from {}",
    "objective.name": "{}",
    "optimizer.learning_rate": "learning rate {}",
}
MIB = 2**20
UNITS = {  # of what stands in result.json
    **{"num_params": 1, "examples_per_second": 1, "exact_share": 1},
    **{"compiled_bytes": MIB, "peak_bytes": MIB},
}


def make_frame(runs: Sequence[Run]) -> tuple[Frame, list[str]]:
    """The rows of these runs, point by point in the order of the tables.

    Beside config and findings (rates in per cent, memory in MiB) a row has `named`
    (what tells its point from the others, key -> value), `label` (the same in words),
    `point` (equal within a point) and `place` (to sort points of several tasks by).
    Returns the frame, and a line about each run that had to be left out.
    """
    frame = pd.DataFrame([_row(run) for run in runs], dtype=object)
    frame = frame.where(frame.notna(), None)
    learnt = ["task", "objective.name"]  # says the metric of what is not finished
    first: Any = frame.groupby(learnt)["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(first).fillna("accuracy")
    frame, doubles = _without_doubles(frame)
    frame, others = _without_other_data(frame)
    text = _texts(frame).drop(columns=SEED)
    frame["point"] = text.agg("\n".join, axis=1)
    frame["named"] = _names(frame, text)
    labels = zip(frame["attention"], frame["named"], strict=True)
    frame["label"] = [label(*pair) for pair in labels]
    frame["place"] = [_place(row) for row in frame.itertuples()]
    tasks = [*TASKS, *sorted({*frame["task"]} - {*TASKS})]
    ranks = frame["task"].map(tasks.index)
    keys = zip(ranks, frame["place"], frame["seed"], frame.index, strict=True)
    return frame.loc[[index for *_, index in sorted(keys)]], doubles + others


def points(frame: Frame) -> list[Frame]:
    """The rows of each point, in order."""
    return [point for _, point in frame.groupby("point", sort=False)]


def values(point: Frame, key: str) -> list[float]:
    """The finite numbers of a column."""
    return [value for value in point[key] if is_finite(value)]


def label(attention: str, named: dict[str, Any], without: str = "") -> str:
    """As in "nystrom, 64 landmarks"; without one key's words."""
    words = [phrase(*item) for item in named.items() if item[0] != without]
    return ", ".join([attention, *words])


def phrase(key: str, value: Any) -> str:
    """One setting in words."""
    text = f"{value:,}" if type(value) is int else str(value)
    if (key, value) == ("train.init_from", None):
        text = "scratch"
    return WORDS.get(key, f"{key.removeprefix('attention.')} {{}}").format(text)


def _row(run: Run) -> dict[str, Any]:
    config, result = run.config, run.result
    preset, changes = nearest_preset(config, IRRELEVANT | {SEED})
    task, metric = config["task"]["name"], result.get("metric")
    unit = scale(metric) if metric else 1
    flat = {key: x for key, x in flatten(config).items() if key not in IRRELEVANT}
    if source := flat.get("train.init_from"):  # each seed has a source of its own
        own = rf"seed{flat[SEED]}\b"
        flat["train.init_from"] = re.sub(own, "seed*", str(source).rsplit("/")[-1])
    found = {key: result.get(key) for key in UNITS}
    return {
        "run": run,
        "task": task,
        "attention": config["attention"]["name"],
        "seed": flat[SEED],
        "metric": metric,
        "preset": preset,
        "changes": changes,
        "paper": is_paper(task, preset, changes),
        "finished": bool(result),
        "test": unit * result[f"test_{metric}"] if result else None,
        "floors": {k: unit * x for k, x in result.get("floors", {}).items()},
        "floor": floor_reached(result) if result else None,
        "params_sha256": result.get("params_sha256"),
        **{k: x / UNITS[k] if is_finite(x) else None for k, x in found.items()},
        **{x: str(result[x]) if result.get(x) else None for x in ("device", "commit")},
        **flat,
    }


def floor_reached(result: dict[str, Any]) -> str | None:
    """The floor that a finished run is stuck at, if any.

    Of a rate that is one within two standard deviations of its test value, taken as the
    mean of test_examples draws; or the nearest, where the value is below all. Of
    another metric, which is the better the lower, the nearest where it is above all.
    """
    floors, metric = result["floors"], result["metric"]
    if not floors:
        return None
    value = result[f"test_{metric}"]
    nearest = min(floors, key=lambda name: abs(floors[name] - value))
    if not is_rate(metric):
        return nearest if value >= max(floors.values()) else None
    floor = floors[nearest]
    sd = math.sqrt(floor * (1 - floor) / result["test_examples"])
    stuck = abs(value - floor) <= 2 * sd or value <= min(floors.values())
    return nearest if stuck else None


def _texts(frame: Frame) -> Frame:
    """The columns of the config, each cell as text that tells 1 from "1"."""
    return frame[[column for column in frame if "." in column]].map(repr)


def _without_doubles(frame: Frame) -> tuple[Frame, list[str]]:
    """Each setting and seed once: the first that is finished, or the first."""
    told, kept = [], []
    text = _texts(frame).agg("\n".join, axis=1)
    for _, same in frame.groupby(text, sort=False):
        same = same.sort_values("finished", ascending=False, kind="stable")
        first, *others = same.itertuples()
        kept.append(first.Index)
        for other in others:
            found = (other.test, other.params_sha256)
            equal = not other.finished or found == (first.test, first.params_sha256)
            why = "counts once" if equal else "has another result"
            told.append(
                f"{other.run.name} is left out: it has the settings and seed of "
                f"{first.run.name} and {why}"
            )
    return frame.loc[sorted(kept)], told


def _without_other_data(frame: Frame) -> tuple[Frame, list[str]]:
    """Of finished runs of equal task options those with the data of the first."""
    task = _texts(frame).filter(regex=r"^task\.").agg("\n".join, axis=1)
    first: dict[tuple[str, str], tuple[str, str]] = {}
    told: dict[int, str] = {}
    for index, run in frame["run"].items():
        for split, sha256 in run.result.get("data_sha256", {}).items():
            name, theirs = first.setdefault((task[index], split), (run.name, sha256))
            if theirs != sha256:
                told[index] = (
                    f"{run.name} is left out: it has read other {split} data than "
                    f"{name} under the same settings; report it apart"
                )
    return frame.drop(index=list(told)), list(told.values())


def _names(frame: Frame, text: Frame) -> list[dict[str, Any]]:
    """For each row what tells it from the others, as key -> value.

    That is its preset, where runs of its task differ in it, and what they differ in
    beside. Options of an attention are compared among all runs of the attention, so
    that one name stands for the same options in every task.
    """
    changed = pd.DataFrame(
        [[key in changes for key in text] for changes in frame["changes"]],
        frame.index,
        text.columns,
    )
    in_task = {
        task: _differing(text.loc[of.index], of, changed)
        for task, of in frame.groupby("task")
    }
    in_attention, silent = {}, {}
    for name, of in frame.groupby("attention"):
        in_attention[name] = _differing(text.loc[of.index], of, changed)
        options = [key for key in in_attention[name] if key.startswith("attention.")]
        silent[name] = _understood(text.loc[of.index, options], changed)
    presets = frame.groupby("task")["preset"].nunique()
    named = []
    for row in frame.itertuples():
        names = {PRESET: row.preset} if presets[row.task] > 1 else {}
        quiet = silent[row.attention] - row.changes.keys()
        for key in flatten(row.run.config):
            option = key.startswith("attention.")
            known = in_attention[row.attention] if option else in_task[row.task]
            if key in known - quiet:
                names[key] = frame.at[row.Index, key]
        named.append(names)
    return named


def _differing(text: Frame, peers: Frame, changed: Frame) -> set[str]:
    """The keys in which runs differ otherwise than by their tasks' presets."""
    alike = [peers[key] for key in ("task", "attention", "preset")]
    within = (text.groupby(alike).nunique() > 1).any()
    between = (text.nunique() > 1) & changed.loc[peers.index].any()
    return set(text.columns[within | between])


def _understood(options: Frame, changed: Frame) -> set[str]:
    """The options that need no name where they are the preset's: where each run changes
    one at most, as ablations do.

    A single option is named in all runs, which then read as a series; so is the number
    of landmarks, which is an axis of figures.
    """
    changed = changed.loc[options.index, options.columns]
    if options.shape[1] < 2 or (changed.sum(axis=1) > 1).any():
        return set()
    usual = options.mask(changed).nunique()
    return {key for key in options if usual[key] == 1} - {NUM_LANDMARKS}


def _place(row: Any) -> tuple:
    """Where it stands among all: attentions as in their table, numbers by size."""
    known = [*ATTENTIONS, row.attention]
    sizes = [
        (key, *((0, x, "") if type(x) in (int, float) else (x is not None, 0, repr(x))))
        for key, x in sorted(row.named.items())
    ]
    return known.index(row.attention), row.attention, sizes
