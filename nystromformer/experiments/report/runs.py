"""Runs as a data frame: a row for each run and each metric that it is scored by.

A row is named by `names.name_runs`; the tables and figures of a report group by these
names.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from flax.traverse_util import flatten_dict

from nystromformer.errors import ConfigError
from nystromformer.experiments.metric_names import is_rate
from nystromformer.experiments.report.names import hide_seeds, name_runs, sort_key
from nystromformer.run_files import (
    CONFIG_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RESULT_FILE,
    has_imported_weights,
)

Frame = Any  # a pandas.DataFrame; to a type checker its cells are anything at all

# Metrics that are shares of test examples, so that chance is binomial.
SHARES_OF_EXAMPLES = ("accuracy", "sop_accuracy")
# What a run has whose result.json is not there, or is older than these keys.
UNKNOWN = {
    "command": "",
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


def read_runs(folders: Iterable[Path]) -> Frame:
    """Reads all runs in these folders and below, in the order of the tables.

    The runs that a sweep has planned there are among them, begun or not.

    Args:
      folders: workdirs, or folders of workdirs.

    Returns:
      A frame with the columns of `read_run` and `name_runs`, and besides
        column: the heading of the metric, as in "listops accuracy, %".
        score: the test value, in per cent if it is a rate.
        score_sd: its binomial standard deviation, for shares of test examples.

    Raises:
      ConfigError: for a folder without runs, for runs of one task, preset and options
        of the task that were tested on different data, and for two runs of equal
        settings and seed.
    """
    frame: Frame = pd.DataFrame(_read_rows(folders))
    _fill_metrics(frame)
    _add_scores(frame)
    frame["column"] = list(map(heading, frame["task"], frame["metric"]))

    _fill_missing_settings(frame)
    hide_seeds(frame)
    frame = frame.join(name_runs(frame))
    _check_test_data(frame)
    _check_no_duplicates(frame)

    order = ["attention", "label", "task", "seed"]
    return frame.sort_values(
        order, key=lambda column: column.map(sort_key), kind="stable"
    )


def _read_rows(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of `read_run` for every run in these folders, by the path of the run."""
    configs: dict[Path, Any] = {}
    for folder in folders:
        configs_below = find_configs(folder)
        if not configs_below:
            raise ConfigError(
                f"no runs in {folder}: no trained or planned one there or below"
            )
        configs.update(configs_below)

    rows = []
    for workdir in sorted(configs):
        rows.extend(read_run(workdir, configs[workdir]))
    return rows


def find_configs(folder: Path) -> dict[Path, Any]:
    """Finds the workdir and the config of each run in or below a folder.

    Runs that a sweep has planned and not begun are among them. Imported weights are
    not: they have a config and were not trained here.
    """
    configs = {}
    for plan in folder.rglob(PLAN_FILE):
        for name, config in json.loads(plan.read_text()).items():
            configs[plan.parent / name] = config
    for file in folder.rglob(CONFIG_FILE):
        workdir = file.parent
        if not has_imported_weights(workdir):
            configs[workdir] = json.loads(file.read_text())
    return configs


def read_run(workdir: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reads one run.

    Args:
      workdir: its folder, which may not exist yet.
      config: the content of its config.json.

    Returns:
      A row for the metric that chose the weights, and one for each other rate with
      floors. Each has the keys of result.json and besides
        run: the path of the workdir.
        task, objective, attention, seed: a set of GLUE counts as a task.
        settings: the config, flat, as in "train.seed"; of `source_dir` the last part.
        presets: the words of the config, as in "quick,mrpc"; None if unknown.
        overrides: the values that the command line set, by flat keys.
        has_overrides: whether config.json records this.
        num_steps: how long it trains; 0 of a planned run that counts epochs.
        test_data: the sha256 of the test split, if it is known.
        score: the test value of the metric; NaN where the run is not finished.
        curves: the lines of metrics.jsonl; `step` is the last one's.
        finished: whether there is a result.
        device, commit: if the run was resumed elsewhere all of them, as "A, then B".

    Raises:
      ConfigError: if the config is not that of a run.
    """
    if "objective" not in config:
        raise ConfigError(
            f"{workdir}/config.json is not the config of a run: it has no objective; "
            "name folders of runs of scripts/train.py"
        )
    result = _read_result(workdir)
    curves = _read_curves(workdir)
    subset = config["task"].get("subset")  # a set of GLUE
    test_hashes = result.get("data_sha256") or {}
    run = {
        "run": str(workdir),
        **UNKNOWN,
        **result,
        "task": subset or config["task"]["name"],
        "objective": config["objective"]["name"],
        "attention": config["attention"]["name"],
        "seed": config["train"]["seed"],
        "settings": _flatten_settings(config),
        "presets": config.get("preset"),
        "overrides": config.get("overrides", {}),
        "has_overrides": "overrides" in config,  # Older runs do not record them.
        "num_steps": config["train"]["num_steps"],
        "test_data": test_hashes.get("test"),
        "curves": curves,
        "step": curves[-1]["step"] if curves else 0,
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


def _read_result(workdir: Path) -> dict[str, Any]:
    """The content of result.json; empty while there is none."""
    file = workdir / RESULT_FILE
    return json.loads(file.read_text()) if file.exists() else {}


def _of_all_sessions(result: Mapping[str, Any], key: str) -> Any:
    """The value of a run; where its sessions have several, a text as "A, then B"."""
    sessions = result.get("sessions") or [result]
    values = list(dict.fromkeys(session[key] for session in sessions))
    return values[0] if len(values) == 1 else ", then ".join(map(str, values))


def _read_curves(workdir: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; none while there is no such file.

    A run that trains may be about to write the last one.
    """
    file = workdir / METRICS_FILE
    if not file.exists():
        return []
    *lines, _ = file.read_text().split("\n")
    return [json.loads(line) for line in lines]


def _flatten_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config by flat keys, in which runs of one setting are equal.

    `preset` loses the set of GLUE, which is a task of its own. It is "paper" if nothing
    else is left, and None if the config names no preset. `task.source_dir` becomes the
    last part of the path, since the same folder may have moved. Where epochs are
    counted, the steps are left out: a run that has begun knows them, and one that is
    planned does not.
    """
    groups = {key: value for key, value in config.items() if key != "overrides"}
    presets = config.get("preset")
    subset = config["task"].get("subset")
    if presets:
        words = [word for word in presets.split(",") if word != subset]
        groups["preset"] = ",".join(words) or "paper"
    else:
        groups["preset"] = None

    source_dir = Path(config["task"].get("source_dir") or "").name
    groups["task"] = {**config["task"], "source_dir": source_dir or None}
    if config["train"].get("num_epochs"):
        groups["train"] = {**config["train"], "num_steps": 0}
    return flatten_dict(groups, sep=".")


def _fill_missing_settings(frame: Frame) -> None:
    """Adds settings that a run's config lacks and another run's has, with defaults.

    A setting is missing if it was introduced after the run, which has therefore trained
    with what is the default now.
    """
    all_keys = set().union(*frame["settings"])
    if all(settings.keys() >= all_keys for settings in frame["settings"]):
        return

    # The imports are here, since a report on runs of one version needs no model.
    from lra_tasks.task import default_options
    from nystromformer.config import default_settings

    for settings in frame["settings"]:
        defaults = default_settings(settings["attention.name"])
        defaults |= default_options(settings["task.name"])
        for key in all_keys & defaults.keys():
            settings.setdefault(key, defaults[key])


def _fill_metrics(frame: Frame) -> None:
    """Gives unfinished runs the metric of the finished ones of their task."""
    metric_of_task = frame.groupby(["task", "objective"])["metric"].transform("first")
    frame["metric"] = frame["metric"].fillna(metric_of_task).fillna("accuracy")


def _add_scores(frame: Frame) -> None:
    """Shows scores in per cent, and adds the binomial standard deviation of shares."""
    share = frame["score"]
    factor = frame["metric"].map(scale)
    deviation = (share * (1 - share) / frame["test_examples"]) ** 0.5
    # An example of the objective positions has several labels.
    has_one_label = frame["objective"] != "positions"
    is_share = frame["metric"].isin(SHARES_OF_EXAMPLES) & has_one_label
    frame["score"] = factor * share
    frame["score_sd"] = (factor * deviation).where(is_share)


def _check_test_data(frame: Frame) -> None:
    """Raises ConfigError if runs whose scores are compared saw different data."""
    for _, hashes in frame.groupby(["column", "data", "preset"])["test_data"]:
        different = hashes.dropna().drop_duplicates()
        if len(different) > 1:
            workdirs = ", ".join(frame["run"][different.index])
            raise ConfigError(
                "these runs have equal options of the task and were tested on "
                f"different data; report on them apart: {workdirs}"
            )


def _check_no_duplicates(frame: Frame) -> None:
    """Raises ConfigError if two runs have equal settings and the same seed."""
    is_equal = frame.duplicated(["column", "label", "seed"], keep=False)
    if is_equal.any():
        workdirs = ", ".join(frame["run"][is_equal])
        raise ConfigError(
            "these runs have equal settings and seed; report on them apart, or keep "
            "one, and delete the folders of the others and their entries in "
            f"sweep.json: {workdirs}"
        )


def heading(task: str, metric: str) -> str:
    """The heading of a metric's column, as in "listops accuracy, %"."""
    unit = ", %" if is_rate(metric) else ""
    return f"{task} {metric.replace('_', ' ')}{unit}"


def scale(metric: str) -> int:
    """The factor by which a metric is shown: rates are shown in per cent."""
    return 100 if is_rate(metric) else 1
