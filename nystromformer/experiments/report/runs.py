"""The table of runs: a row for each run and each metric that it is scored by.

A row is named by the settings in which the runs differ; the tables and figures of a
report group by these names.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from flax.traverse_util import flatten_dict

from lra_tasks import LRA
from nystromformer.attention import ATTENTIONS
from nystromformer.errors import ConfigError
from nystromformer.experiments.report.records import Record
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT, is_rate

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all

# The order of the rows and columns: attentions, then these; then other names.
TASK_ORDER = (
    *LRA,
    "pathx",
    "corpus",
    "glue",
    "labelled_texts",
    "pictures",
    "recall",
)
# Settings that no name needs: they change no number, or stand beside it anyway.
UNNAMED = SETTINGS_WITHOUT_EFFECT | {"task.name", "attention.name", "train.seed"}
# How a batch is cut to fit the memory, which attentions need to a different extent.
CUTS_OF_A_BATCH = {"train.grad_accum_steps", "train.length_buckets", "model.remat"}
# Folders whose names may have a seed.
FOLDERS = ("train.init_from", "task.tokenizer", "task.source_dir")
MISSING = repr(math.nan)  # the text of a setting that a run's config does not have

# Metrics that are shares of test examples, so that chance is binomial.
SHARES_OF_EXAMPLES = ("accuracy", "sop_accuracy")
# What a run has whose result.json is not there, or is older than these keys.
UNKNOWN = {
    "device": None,
    "commit": None,
    "metric": None,
    "floors": {},
    "score": math.nan,
    "test_examples": math.nan,
    "num_params": math.nan,
    "examples_per_second": math.nan,
    "compiled_bytes": math.nan,
    "fraction_exact": math.nan,
}


def make_frame(records: Iterable[Record]) -> Frame:
    """Makes the table of runs, in the order of a report.

    Returns:
      A row for the metric that chose a run's weights, and one for each other rate with
      floors. Each has the keys of result.json and besides
        run: the name of the run.
        task, objective, attention, seed: a set of GLUE counts as a task.
        settings: the config, flat, as in "train.seed".
        overrides: the values that the command line set, by flat keys.
        num_steps: how long it trains; 0 of a planned run that counts epochs.
        test_data: the sha256 of the test split, if it is known.
        score: the test value, in per cent if it is a rate; NaN of an unfinished run.
        score_sd: its binomial standard deviation, for shares of test examples.
        curve: the lines of metrics.jsonl; `step` is the last one's.
        finished: whether there is a result.
        device, commit: if the run was resumed elsewhere all of them, as "A, then B".
        column: the heading of the metric, as in "listops accuracy, %".
      and the names of `_name_rows`.

    Raises:
      ConfigError: for two runs of equal settings and seed in one folder.
    """
    rows = []
    for record in records:
        rows.extend(_list_rows(record))
    frame: Frame = pd.DataFrame(rows)
    metric_of_task = frame.groupby(["task", "objective"])["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(metric_of_task).fillna("accuracy")
    _scale_scores(frame)
    frame["column"] = list(map(heading, frame["task"], frame["metric"]))

    _fill_missing_settings(frame)
    _hide_seeds(frame)
    frame = frame.join(_name_rows(frame))
    _tell_test_data_apart(frame)
    _tell_equal_runs_apart(frame)
    order = ["attention", "label", "task", "data", "seed"]
    return frame.sort_values(
        order, key=lambda column: column.map(sort_key), kind="stable"
    )


def _list_rows(record: Record) -> list[dict[str, Any]]:
    """The rows of one run in the table, a row for each of its metrics."""
    config = record["config"]
    result = record["result"] or {}
    curve = record["curve"]
    test_hashes = result.get("data_sha256") or {}
    run = {
        **UNKNOWN,
        **result,
        "run": record["run"],
        "task": config["task"].get("subset") or config["task"]["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": config["train"]["seed"],
        "settings": _flatten_settings(config),
        "overrides": config.get("overrides", {}),
        "num_steps": config["train"]["num_steps"],
        "test_data": test_hashes.get("test"),
        "curve": curve,
        "step": curve[-1]["step"] if curve else 0,
        "finished": bool(result),
    }
    other_floors = run.pop("other_floors", {})
    if not result:
        return [run]

    for key in ("device", "commit"):
        run[key] = _of_all_sessions(result, key)
    floors = {run["metric"]: run["floors"]}
    for metric, rules in other_floors.items():
        if is_rate(metric):
            floors[metric] = rules
    rows = []
    for metric, rules in floors.items():
        score = result[f"test_{metric}"]
        rows.append({**run, "metric": metric, "floors": rules, "score": score})
    return rows


def _of_all_sessions(result: Mapping[str, Any], key: str) -> Any:
    """The value of a run; where its sessions have several, a text as "A, then B"."""
    sessions = result.get("sessions") or [result]
    values = [session[key] for session in sessions]
    if key == "device":
        # Some records have "1 cores", which is the same device.
        values = [re.sub(r"\b1 cores\b", "1 core", device) for device in values]
    different_values = list(dict.fromkeys(values))
    if len(different_values) == 1:
        return different_values[0]
    return ", then ".join(map(str, different_values))


def _flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config by flat keys, in which runs of one setting are equal.

    `preset` loses the set of GLUE, which is a task of its own. It is "paper" if nothing
    else is left, and None if the config names no preset. Of a folder the last part is
    left, since the same folder may have moved. Where epochs are counted, the steps are
    left out: a run that has begun knows them, and one that is planned does not.
    """
    groups = {name: group for name, group in config.items() if name != "overrides"}
    settings: Any = flatten_dict(groups, sep=".")
    preset = config.get("preset")
    if preset:
        words = [x for x in preset.split(",") if x != config["task"].get("subset")]
        preset = ",".join(words) or "paper"
    settings["preset"] = preset

    for key in FOLDERS:
        if settings.get(key):
            settings[key] = Path(settings[key]).name
    if settings.get("train.num_epochs"):
        settings["train.num_steps"] = 0
    return settings


def _scale_scores(frame: Frame) -> None:
    """Shows scores in per cent, and adds the binomial standard deviation of shares."""
    share = frame["score"]
    factor = frame["metric"].map(scale)
    deviation = (share * (1 - share) / frame["test_examples"]) ** 0.5
    # An example of the objective positions has several labels.
    has_one_label = frame["objective"] != "positions"
    is_share = frame["metric"].isin(SHARES_OF_EXAMPLES) & has_one_label
    frame["score"] = factor * share
    frame["score_sd"] = (factor * deviation).where(is_share)


def _fill_missing_settings(frame: Frame) -> None:
    """Adds settings that a run's config lacks and another run's has, with defaults.

    A setting is missing if it was introduced after the run, which has therefore trained
    with what is the default now.
    """
    all_keys = set().union(*frame["settings"])
    if all(settings.keys() >= all_keys for settings in frame["settings"]):
        return

    # The import is here, since a report on runs of one version needs no model.
    from nystromformer.experiments.config_file import default_settings

    for settings in frame["settings"]:
        defaults = default_settings(settings["task.name"], settings["attention.name"])
        for key in all_keys & defaults.keys():
            settings.setdefault(key, defaults[key])


def _hide_seeds(frame: Frame) -> None:
    """Replaces a run's seed by "*" in the folders that its settings name, in place.

    "pretrained-seed1" becomes "pretrained-seed*" in a run of seed 1. Runs that each
    start from the run of their seed then have equal settings, and share a row. A folder
    that runs of several seeds have in common keeps its name.
    """
    for key in ("train.init_from", "task.tokenizer"):
        folders = pd.Series([settings.get(key) for settings in frame["settings"]])
        groups = frame["seed"].groupby([folders, frame["task"], frame["attention"]])
        has_one_seed = groups.transform("nunique") == 1
        for seed, settings in frame.loc[has_one_seed, ["seed", "settings"]].to_numpy():
            seed_pattern = rf"seed{seed}(?!\d)"
            settings[key] = re.sub(seed_pattern, "seed*", settings[key])


def _name_rows(frame: Frame) -> Frame:
    """Names each run by its attention and the settings in which the runs differ.

    A setting is written as its flag is, as in "train.num_steps=700"; those of the
    attention are without their group, as in "num_landmarks=8".

    Returns:
      The parts of a name, for each row of the frame:
        label: the whole name. Runs of one label differ in nothing but their seed.
        row: the label without the options of the task.
        data: the options of the task, as in "num_pairs=16".
        preset: the preset where there are several, as in "preset=quick".
    """
    settings: Frame = pd.DataFrame(list(frame["settings"]))
    texts = settings.drop(columns=[key for key in settings if key in UNNAMED])
    is_named = _choose_settings(texts.map(repr), frame["task"], frame["attention"])
    keys = sorted(texts, key=lambda x: (x != "preset", not x.startswith("attention.")))
    names = []
    for index, values in frame["settings"].items():
        row_words = [frame.at[index, "attention"]]
        data_words = []
        for key in keys:
            value = values.get(key)
            if not is_named.at[index, key] or value is None:
                continue
            group, _, option = key.rpartition(".")
            if group == "task":
                data_words.append(f"{option}={value}")
            elif key == "attention.dropout_rate":
                row_words.append(f"dropout {value} on its weights")
            else:
                row_words.append(f"{key.removeprefix('attention.')}={value}")

        is_preset_named = is_named.at[index, "preset"] and values["preset"]
        names.append(
            {
                "label": ", ".join(row_words + data_words),
                "row": ", ".join(row_words),
                "data": ", ".join(data_words),
                "preset": f"preset={values['preset']}" if is_preset_named else "",
            }
        )
    return pd.DataFrame(names, index=frame.index)


def _choose_settings(texts: Frame, task: Frame, attention: Frame) -> Frame:
    """Which settings the name of each run has: bool [runs, settings].

    A name has what tells a run from others of its task and preset. How many options an
    attention has, and how its batch is cut, differs by nature from attention to
    attention, so these are compared among runs of one attention alone:

    | setting                      | stands in the names of                           |
    | ---------------------------- | ------------------------------------------------ |
    | preset                       | all runs, if those of a task have several        |
    | task.max_length              | runs of the task and preset, if they differ      |
    | attention.num_landmarks      | runs of the attention and preset in all tasks,   |
    |                              | if they differ in one task                       |
    | attention.dropout_rate       | these, and every run that drops attention weights|
    | train.grad_accum_steps       | runs of the task, preset and attention, if they  |
    |                              | differ                                           |
    | train.num_steps and the rest | runs of the task and preset, if they differ, but |
    |                              | for those that have the usual value              |

    Three runs of 500 steps and one of 700 are so named "linear", "softmax", "nystrom"
    and "nystrom, train.num_steps=700".

    Args:
      texts: the settings, a column each, as texts, so that lists can be compared.
      task: the task of each run.
      attention: the attention of each run.
    """
    preset = texts["preset"]
    of_task = [task, preset]
    of_task_and_attention = [task, preset, attention]
    is_named = {}
    for key in texts:
        values = texts[key]
        if key == "preset":
            has_several_presets = (preset.groupby(task).nunique() > 1).any()
            is_named[key] = pd.Series(has_several_presets, index=texts.index)
        elif key.startswith("task."):
            is_named[key] = _differs(values, of_task)
        elif key in CUTS_OF_A_BATCH:
            is_named[key] = _differs(values, of_task_and_attention)
        elif key.startswith("attention."):
            differs_in_task = _differs(values, of_task_and_attention)
            is_named[key] = differs_in_task.groupby([attention, preset]).transform(
                "any"
            )
            if key == "attention.dropout_rate":
                is_named[key] |= ~values.isin([MISSING, "0.0", "0"])
        else:
            is_usual = values.groupby(of_task).transform(_is_usual)
            is_named[key] = _differs(values, of_task) & ~is_usual
    return pd.DataFrame(is_named)


def _differs(values: Frame, groups: Sequence[Any]) -> Frame:
    """Whether a setting has several values in the group of each run."""
    return values.groupby(groups).transform("nunique") > 1


def _is_usual(values: Frame) -> Frame:
    """Whether each run has the value that needs no name: None, or that of most runs.

    A name cannot say None, or that a config does not have the setting, so that these
    are the usual value wherever a run has them.
    """
    is_none = values.isin(["None", MISSING])
    if is_none.any():
        return is_none
    return values.map(values.value_counts(normalize=True)) > 0.5


def _tell_test_data_apart(frame: Frame) -> None:
    """Gives runs of equal options a column for each test split that they have seen."""
    groups = frame.groupby(["column", "preset", "data"], sort=False)
    for _, hashes in groups["test_data"]:
        if hashes.nunique() < 2:
            continue
        for index, sha256 in hashes.items():
            text = "unknown" if pd.isna(sha256) else sha256[:8]
            _add_word(frame, index, "data", f"test data {text}")
            _add_word(frame, index, "label", f"test data {text}")


def _tell_equal_runs_apart(frame: Frame) -> None:
    """Adds their folders to the names of runs of equal settings and seeds.

    Raises:
      ConfigError: for two such runs in one folder.
    """
    keys = ["column", "label", "seed"]
    for _, equal_runs in frame[frame.duplicated(keys, keep=False)].groupby(keys):
        folders = equal_runs["run"].str.rpartition("/")[0]
        if folders.duplicated().any():
            names = ", ".join(equal_runs["run"])
            raise ConfigError(
                "these runs have equal settings and seed; report on them apart, or "
                "keep one, and delete the folders of the others and their entries in "
                f"sweep.json: {names}"
            )
    is_equal = frame.duplicated(keys, keep=False)
    is_ambiguous = is_equal.groupby([frame["column"], frame["label"]]).transform("any")
    for index, name in frame.loc[is_ambiguous, "run"].items():
        folder = name.rpartition("/")[0] or "no folder"
        _add_word(frame, index, "row", f"in {folder}")
        _add_word(frame, index, "label", f"in {folder}")


def _add_word(frame: Frame, index: Any, column: str, word: str) -> None:
    """Adds a word to a name, in place."""
    words = [frame.at[index, column], word]
    frame.at[index, column] = ", ".join(filter(None, words))


def sort_key(name: Any) -> str:
    """Returns a text by which names are sorted.

    Attentions and tasks have the order of ATTENTIONS and TASK_ORDER; other names come
    after them. Numbers are filled with zeros, so that "num_landmarks=8" comes before
    "num_landmarks=64", and 1e-05 before 0.001.
    """
    order = [*ATTENTIONS, *TASK_ORDER]
    rank = order.index(name) if name in order else len(order)
    number = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    return re.sub(number, lambda match: f"{float(match[0]):032.20f}", f"{rank} {name}")


def heading(task: str, metric: str) -> str:
    """The heading of a metric's column, as in "listops accuracy, %"."""
    unit = ", %" if is_rate(metric) else ""
    return f"{task} {metric.replace('_', ' ')}{unit}"


def scale(metric: str) -> int:
    """The factor by which a metric is shown: rates are shown in per cent."""
    return 100 if is_rate(metric) else 1
