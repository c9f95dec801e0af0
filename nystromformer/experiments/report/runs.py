"""The table of runs: a row for each run and each metric that it is scored by.

The tables and figures of a report group them by their names, see `names.Name`.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from flax.traverse_util import flatten_dict

from lra_tasks import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.report.names import name_runs
from nystromformer.experiments.report.records import Record
from nystromformer.metrics import is_rate, split_of_metric

# Folders whose names may have a seed.
FOLDERS = ("train.init_from", "task.tokenizer", "task.source_dir")

# Metrics of a split that are shares of its examples, so that chance is binomial.
SHARES_OF_EXAMPLES = ("accuracy", "sop_accuracy")
# What chooses the weights of our objectives, unless a config says; else accuracy.
SELECTED_METRICS = {"mlm": "loss", "mlm_sop": "mlm_accuracy"}
NOT_RECORDED = "not recorded"  # a commit, device or version
# What a run has whose result.json is not there, or is older than these keys.
UNKNOWN = {
    "device": None,
    "commit": None,
    "versions": {},
    "floors": {},
    "score": math.nan,
    "test_examples": math.nan,
    "num_params": math.nan,
    "examples_per_second": math.nan,
    "compiled_bytes": math.nan,
    "fraction_exact": math.nan,
}
# Where a program trains several seeds these are of all of them, and stand beside no
# other run's.
COSTS_OF_A_PROGRAM = ("examples_per_second", "compiled_bytes")


def make_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Makes the table of runs, in the order of a report.

    Returns:
      A row for the metric that chose a run's weights, and one for each other rate with
      floors. Each has the keys of result.json and besides
        run: the name of the run.
        task, objective, attention, seed: a set of GLUE counts as a task.
        settings: the config, flat, as in "train.seed".
        overrides: the values that the command line set, by flat keys.
        num_steps: how long it trains; 0 of a planned run that counts epochs.
        test_data: the sha256 of the metric's test split, if it is known.
        test_examples: how many this split has.
        is_share: whether the score is a share of them.
        score: the test value, in per cent if it is a rate; NaN of an unfinished run.
        score_sd: its binomial standard deviation, for shares of test examples.
        curve: the lines of metrics.jsonl; `step` is the last one's.
        finished: whether there is a result.
        failed: why there will be none; None of any other run.
        device, commit: if the run was resumed elsewhere all of them, as "A, then B";
          NOT_RECORDED where it is not known.
        versions: library -> version, and the flags of XLA, in the same way; empty
          where they are not known.
        column: the heading of the metric, as in "listops accuracy, %".
      and the parts of its name, as in `names.Name`.

    Raises:
      ConfigError: for two runs of equal settings and seed in one folder.
    """
    rows = []
    for record in records:
        rows.extend(_list_rows(record))
    frame = pd.DataFrame(rows)
    metric_of_task = frame.groupby(["task", "objective"])["metric"].transform("first")
    usual_metric = frame["objective"].map(SELECTED_METRICS).fillna("accuracy")
    frame["metric"] = frame["metric"].fillna(metric_of_task).fillna(usual_metric)
    for key in ("device", "commit"):
        frame[key] = frame[key].fillna(NOT_RECORDED)
    _scale_scores(frame)
    frame["column"] = list(map(heading, frame["task"], frame["metric"]))

    _fill_missing_settings(frame)
    _hide_seeds(frame)
    frame = frame.join(name_runs(frame))
    order = ["attention", "label", "task", "data", "seed"]
    return frame.sort_values(
        order, key=lambda column: column.map(sort_key), kind="stable"
    )


def count_finished(frame: pd.DataFrame) -> str:
    """Says how many runs are finished, how many have failed, and why the first has."""
    runs = frame.drop_duplicates("run")
    text = f"{runs['finished'].sum()} of {len(runs)} runs are finished"
    failed = runs[runs["failed"].notna()]
    if failed.empty:
        return text
    first = failed.iloc[0]
    return (
        f"{text}, {len(failed)} failed; {first['run']}: {first['failed'].rstrip('.')}"
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
        "metric": result.get("metric", config["objective"].get("select")),
        "attention": config["attention"]["name"],
        "seed": config["train"]["seed"],
        "settings": _flatten_settings(config),
        "overrides": config.get("overrides", {}),
        "num_steps": config["train"]["num_steps"],
        "test_data": None,
        "is_share": False,
        "curve": curve,
        "step": curve[-1]["step"] if curve else 0,
        "finished": bool(result),
        "failed": record.get("failed"),
    }
    sessions = result.get("sessions") or record.get("sessions")
    if sessions:
        for key in ("device", "commit"):
            run[key] = _of_all_sessions(sessions, key)
        versions = [session.get("versions", {}) for session in sessions]
        libraries = dict.fromkeys(name for part in versions for name in part)
        run["versions"] = {
            library: _of_all_sessions(versions, library) for library in libraries
        }
    other_floors = run.pop("other_floors", {})
    if not result:
        return [run]

    if "seeds_together" in result:
        run |= dict.fromkeys(COSTS_OF_A_PROGRAM, math.nan)
    floors = {run["metric"]: run["floors"]}
    for metric, rules in other_floors.items():
        if is_rate(metric):
            floors[metric] = rules
    rows = []
    for metric, rules in floors.items():
        split = split_of_metric(metric, result)
        name_in_split = f"test_{metric}".removeprefix(f"{split}_")
        is_share = name_in_split in SHARES_OF_EXAMPLES
        # An example of the objective positions has several labels.
        has_one_label = run["objective"] != "positions"
        row = {
            "metric": metric,
            "floors": rules,
            "score": result[f"test_{metric}"],
            "test_data": test_hashes.get(split),
            "test_examples": result.get(f"{split}_examples", math.nan),
            "is_share": is_share and has_one_label,
        }
        rows.append({**run, **row})
    return rows


def _of_all_sessions(sessions: Sequence[Mapping[str, Any]], key: str) -> Any:
    """The value of a run; where its sessions have several, a text as "A, then B"."""
    values = [session.get(key, NOT_RECORDED) for session in sessions]
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
    left out: a run that has begun knows them, and one that is planned does not. So are
    the options that a task finds in its data, unless the command line set them.
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
    for option in _list_found_options(settings["task.name"]):
        key = f"task.{option}"
        if key not in config.get("overrides", {}):
            settings.pop(key, None)
    return settings


def _list_found_options(task: str) -> Sequence[str]:
    """The options that a task finds in its data; none of a task that is not ours."""
    # The import is here, so that importing a report loads no task.
    from lra_tasks.task import task_class

    return task_class(task).found_options if task in TASKS else ()


def _scale_scores(frame: pd.DataFrame) -> None:
    """Shows scores in per cent, and adds the binomial standard deviation of shares."""
    share = frame["score"]
    factor = frame["metric"].map(scale)
    deviation = (share * (1 - share) / frame["test_examples"]) ** 0.5
    frame["score"] = factor * share
    frame["score_sd"] = (factor * deviation).where(frame["is_share"])


def _fill_missing_settings(frame: pd.DataFrame) -> None:
    """Adds settings that a run's config lacks and another run's has, with defaults.

    A setting is missing if it was introduced after the run, which has therefore trained
    with what is the default now.
    """
    all_keys = set().union(*frame["settings"])
    if all(settings.keys() >= all_keys for settings in frame["settings"]):
        return

    # The import is here, since a report on runs of one version needs no model.
    from nystromformer.experiments.workdir import default_settings

    for settings in frame["settings"]:
        defaults = default_settings(settings["task.name"], settings["attention.name"])
        for key in all_keys & defaults.keys():
            settings.setdefault(key, defaults[key])


def _hide_seeds(frame: pd.DataFrame) -> None:
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


def sort_key(name: Any) -> str:
    """Returns a text by which names are sorted.

    Attentions and tasks have the order of their tables; other names come after them.
    Numbers are filled with zeros, so that "num_landmarks=8" comes before
    "num_landmarks=64", and 1e-05 before 0.001.
    """
    order = [*ATTENTIONS, *TASKS]
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
