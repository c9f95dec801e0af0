"""The runs as a data frame: one row for each, named by its differences from the others.

A row has the flattened config ("group.key" columns) and the results. Runs that differ
only in the seed form one point and are averaged; any other difference (preset, length,
steps, an option of the attention) becomes part of the point's name.
"""

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.objectives import is_rate
from nystromformer.experiments.report.presets import flatten, is_paper, nearest_preset
from nystromformer.experiments.report.runs import Run, is_finite, scale
from nystromformer.experiments.workdir import TOKENIZER_FILE, file_sha256

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all
SOURCE = "init_from_sha256"
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
    "train.num_epochs": "{} epochs",
    "task.subset": "{}",
    "train.grad_accum_steps": "{} parts",
    "train.length_buckets": "{} lengths",
    "train.init_from": "from {}",
    "objective.name": "{}",
    "optimizer.learning_rate": "learning rate {}",
}
MIB = 2**20
FOUND = {  # in result.json, by its unit
    **dict.fromkeys(("num_params", "examples_per_second", "fraction_exact"), 1),
    **dict.fromkeys(("compiled_bytes", "peak_bytes"), MIB),
}


def make_frame(runs: Sequence[Run]) -> tuple[Frame, list[str]]:
    """The rows of these runs, point by point in the order of the tables.

    Beside config and findings (rates in per cent, memory in MiB) a row has `named`
    (what tells its point from the others, key -> value), `label` (the same in words),
    `point` (equal within a point) and `place` (to sort points of several tasks by).
    Returns the frame, and a line about each run that had to be left out.
    """
    frame: Frame = pd.DataFrame([_row(run) for run in runs], dtype=object)
    frame = frame.where(frame.notna(), None)
    learnt = ["task", "objective.name"]  # says the metric of what is not finished
    first = frame.groupby(learnt)["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(first).fillna("accuracy")
    if "task.tokenizer" in frame:
        frame["task.tokenizer"] = pd.Series(_tokenizers(frame), frame.index, object)
    frame["train.init_from"] = pd.Series(_sources(frame), frame.index, object)
    left_out = _left_out(frame)
    frame = frame.drop(index=list(left_out))
    text = _texts(frame).drop(columns=SEED)
    frame["point"] = text.agg("\n".join, axis=1)
    frame["named"] = _names(frame, text)
    frame["label"] = [label(row.attention, row.named) for row in frame.itertuples()]
    frame["place"] = [_place(row) for row in frame.itertuples()]
    tasks = [*TASKS, *sorted({*frame["task"]} - {*TASKS})]
    ranks = frame["task"].map(tasks.index)
    keys = zip(ranks, frame["place"], frame["seed"], frame.index, strict=True)
    return frame.loc[[index for *_, index in sorted(keys)]], list(left_out.values())


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
    if type(value) is float:
        text = text.removesuffix(".0")
    if (key, value) == ("train.init_from", None):
        text = "scratch"
    words = WORDS.get(key, f"{key.removeprefix('attention.')} {{}}").format(text)
    return re.sub(r"(?<=sh)es$|s$", "", words) if words.startswith("1 ") else words


def _row(run: Run) -> dict[str, Any]:
    config, result = run.config, run.result
    preset, changes = nearest_preset(config, IRRELEVANT | {SEED})
    task, metric = config["task"]["name"], result.get("metric")
    unit = scale(metric) if metric else 1
    flat = {key: x for key, x in flatten(config).items() if key not in IRRELEVANT}
    found = {
        key: result[key] / FOUND[key] for key in FOUND if is_finite(result.get(key))
    }
    return {
        "run": run,
        "task": task,
        "attention": config["attention"]["name"],
        "seed": flat[SEED],
        "metric": metric,
        "preset": preset,
        "changes": changes,
        "paper": is_paper(task, preset, changes),
        "cited": "imdb" if preset == "subwords" else flat.get("task.subset", task),
        "finished": bool(result),
        "test": unit * result[f"test_{metric}"] if result else None,
        "floors": {k: unit * x for k, x in result.get("floors", {}).items()},
        "test_sd": unit * _sd(result, result[f"test_{metric}"]) if unit > 1 else None,
        "floor": floor_reached(result) if result else None,
        **{key: result.get(key) for key in ("params_sha256", SOURCE)},
        **{key: found.get(key) for key in FOUND},
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
    near = abs(value - floor) <= 2 * _sd(result, floor)
    return nearest if near or value <= min(floors.values()) else None


def _sd(result: dict[str, Any], rate: float) -> float:
    """The standard deviation of a rate over test_examples independent draws."""
    return math.sqrt(rate * (1 - rate) / result["test_examples"])


def _sources(frame: Frame) -> list[str | None]:
    """What to call the run that each one's weights come from: its folder's name.

    In it stands "seed*" for the run's own seed, if all runs of otherwise equal settings
    have such a source. Where one name is of different weights, it is the whole path.
    """
    config = frame.drop(columns=[SEED, "train.init_from"])
    others = _texts(config).agg("\n".join, axis=1)
    alike, paths, found = defaultdict(list), {}, defaultdict(dict)
    for i, path in frame["train.init_from"].dropna().items():
        folder, slash, name = str(path).rstrip("/").rpartition("/")
        stem = re.sub(r"seed\d+\b", "seed*", name)
        own = re.sub(rf"seed{frame.at[i, SEED]}\b", "seed*", name)
        alike[others[i], stem].append((i, folder + slash, name, own))
    for (_, stem), runs in alike.items():
        starred = all(own == stem for *_, own in runs)
        paths |= {i: folder + (stem if starred else x) for i, folder, x, _ in runs}
    names = {i: path.rpartition("/")[2] for i, path in paths.items()}
    for i, name in names.items():  # the first path of each weights, by seed in seed*
        seed, digest = frame.at[i, SEED] if "*" in name else None, frame.at[i, SOURCE]
        if digest:
            paths[i] = found[name, seed].setdefault(digest, paths[i])
    several = {name for (name, _), digests in found.items() if len(digests) > 1}
    return [paths[i] if names.get(i) in several else names.get(i) for i in frame.index]


def _tokenizers(frame: Frame) -> list[str | None]:
    """What to call each run's tokenizer: its path, or the first of an equal one."""
    digests, first, of_path = {}, {}, defaultdict(set)
    for i, path in frame["task.tokenizer"].dropna().items():
        digest = file_sha256(frame.at[i, "run"].workdir / TOKENIZER_FILE)
        if path not in ("bpe", "byte") and digest:
            digests[i] = digest[:8]
            first.setdefault(digests[i], path)
            of_path[path].add(digests[i])

    def name(i: Any, path: str | None) -> str | None:
        known = of_path.get(path, {None})  # of a run that has not begun: the path's
        digest = digests.get(i, *known) if len(known) == 1 else digests.get(i)
        path = first.get(digest, path)
        return f"{path} ({digest})" if len(of_path.get(path, "")) > 1 else path

    return [name(*item) for item in frame["task.tokenizer"].items()]


def _texts(frame: Frame) -> Frame:
    """The columns of the config, each cell as text that tells 1 from "1"."""
    return frame[[column for column in frame if "." in column]].map(repr)


def _left_out(frame: Frame) -> dict[int, str]:
    """Row -> why it is left out: a duplicate, or a run on other data.

    Of equal settings and seed counts the first that is finished, or the first; of equal
    task options those count whose data are the first's.
    """
    told, text = {}, _texts(frame)
    for _, same in frame.groupby(text.agg("\n".join, axis=1), sort=False):
        same = same.sort_values("finished", ascending=False, kind="stable")
        first, *others = same.itertuples()
        for other in others:
            found = (other.test, other.params_sha256)
            equal = not other.finished or found == (first.test, first.params_sha256)
            why = "counts once" if equal else "has another result"
            told[other.Index] = (
                f"{other.run.name} is left out: it has the settings and seed of "
                f"{first.run.name} and {why}"
            )
    options = text.filter(regex=r"^task\.").agg("\n".join, axis=1)
    read: dict[tuple[str, str], tuple[str, str]] = {}
    for index, run in frame["run"].drop(list(told)).items():
        for split, sha256 in run.result.get("data_sha256", {}).items():
            name, theirs = read.setdefault((options[index], split), (run.name, sha256))
            if theirs != sha256:
                told[index] = (
                    f"{run.name} is left out: it has read other {split} data than "
                    f"{name} under the same settings; report it apart"
                )
    return told


def _names(frame: Frame, text: Frame) -> list[dict[str, Any]]:
    """The differences of each row from the others, key -> value.

    That is its preset, where runs of its task differ in it, and what they differ in
    otherwise than by their tasks' presets. Options of an attention are compared among
    all runs of the attention, so that one name stands for the same options in every
    task; those that are not the preset's are named, unless all runs share them. Where
    each run changes one of several options at most, as ablations do, those that are
    the preset's go without saying; but not the number of landmarks, which is an axis of
    figures.
    """
    changed = [[key in changes for key in text] for changes in frame["changes"]]
    changed = pd.DataFrame(changed, frame.index, text.columns)
    told = changed & False
    everywhere = changed.all() & (text.nunique() == 1)  # said above the table
    alike = [frame[key] for key in ("task", "attention", "preset")]
    options = [key for key in text if key.startswith("attention.")]
    for group, keys in (("task", text.columns.drop(options)), ("attention", options)):
        for _, of in frame.groupby(group):
            ours, new = text.loc[of.index, keys], changed.loc[of.index, keys]
            within = (ours.groupby([x[of.index] for x in alike]).nunique() > 1).any()
            differs = within | ((ours.nunique() > 1) & new.any())
            told.loc[of.index, keys] = differs.to_numpy()
            ablated = new.loc[:, differs].sum(axis=1).max() < 2 and differs.sum() > 1
            if group == "attention" and ablated:
                usual = (ours.mask(new).nunique() == 1) & (
                    ours.columns != NUM_LANDMARKS
                )
                told.loc[of.index, keys] &= new | ~usual
            if group == "attention":
                alone = new.any() & (ours.nunique() == 1) & ~everywhere[keys]
                told.loc[of.index, keys] |= alone.to_numpy()
    several = frame.groupby("task")["preset"].transform("nunique") > 1
    named = []
    for row in frame.itertuples():
        names = {PRESET: row.preset} if several[row.Index] else {}
        own = [key for key in flatten(row.run.config) if key in text]
        names |= {k: frame.at[row.Index, k] for k in own if told.at[row.Index, k]}
        named.append(names)
    return named


def _place(row: Any) -> tuple:
    """The sort key of a row: attentions as in ATTENTIONS, numbers by size."""
    known = [*ATTENTIONS, row.attention]
    sizes = [
        (key, *((0, x, "") if type(x) in (int, float) else (x is not None, 0, repr(x))))
        for key, x in sorted(row.named.items())
    ]
    return known.index(row.attention), row.attention, sizes
