"""Names of the rows of a report: the settings that tell its runs apart."""

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra_tasks import LRA
from nystromformer.errors import ConfigError
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT

# The order of the rows and columns. Other names come after these.
ATTENTION_ORDER = (
    "nystrom",
    "softmax",
    "bigbird",
    "efficient",
    "linear",
    "linformer",
    "longformer",
    "performer",
    "reformer",
    "identity",
)
TASK_ORDER = (*LRA, "pathx", "corpus", "glue", "labelled_texts", "recall")
# Settings that no name needs: they change no number, or stand beside it anyway.
UNNAMED = SETTINGS_WITHOUT_EFFECT | {"task.name", "attention.name", "train.seed"}
MISSING = repr(math.nan)  # the text of a setting that a run's config does not have
PHRASES = {
    "preset": "{} preset",
    "task.num_pairs": "{} pairs",
    "attention.by_layer": "layers {}",
    "attention.num_landmarks": "{} landmarks",
    "attention.conv_kernel_size": "convolution of {}",
    "train.num_steps": "{} steps",
    "train.init_from": "from {}",
}


def hide_seeds(frame: Any) -> None:
    """Replaces a run's seed by "*" in the folders that its settings name, in place.

    "runs/pretrained-seed1" becomes "runs/pretrained-seed*" in a run of seed 1. Runs
    that each start from the run of their seed then have equal settings, and share a
    row. A folder that runs of several seeds have in common keeps its name.
    """
    for key in ("train.init_from", "task.tokenizer"):
        folders = pd.Series([settings.get(key) for settings in frame["settings"]])
        groups = frame["seed"].groupby([folders, frame["task"], frame["attention"]])
        has_one_seed = groups.transform("nunique") == 1
        for seed, settings in frame.loc[has_one_seed, ["seed", "settings"]].to_numpy():
            seed_pattern = rf"seed{seed}(?!\d)"
            settings[key] = re.sub(seed_pattern, "seed*", settings[key])


def name_runs(frame: Any) -> pd.DataFrame:
    """Names each run by its attention and the settings that tell it apart.

    Args:
      frame: rows with `task`, `attention`, `settings`, `overrides` and `has_overrides`.

    Returns:
      The parts of a name, for each row of the frame:
        label: the whole name. Runs of one label differ in nothing but their seed.
        row: the label without the options of the task.
        data: the options of the task, as in "16 pairs".
        preset: the preset where there are several, as in "quick preset".
    """
    settings = pd.DataFrame(list(frame["settings"]))
    unnamed = [key for key in settings if key in UNNAMED]
    texts = settings.drop(columns=unnamed).map(repr)
    is_named = _choose_settings(frame, texts)

    names = []
    for index, values in frame["settings"].items():
        phrases = {}
        for key in texts:
            if is_named.at[index, key] and values.get(key) is not None:
                phrases[key] = _format_setting(key, values[key])

        attention = frame.at[index, "attention"]
        row_phrases = [phrases[key] for key in phrases if not _is_of_task(key)]
        data_phrases = [phrases[key] for key in phrases if _is_of_task(key)]
        names.append(
            {
                "label": ", ".join([attention, *phrases.values()]),
                "row": ", ".join([attention, *row_phrases]),
                "data": ", ".join(data_phrases),
                "preset": phrases.get("preset", ""),
            }
        )
    return pd.DataFrame(names, index=frame.index)


def _format_setting(key: str, value: Any) -> str:
    """A setting in words, as in "64 landmarks" or "learning_rate 0.001"."""
    option = key.rpartition(".")[2]
    return PHRASES.get(key, f"{option} {{}}").format(value)


def _is_of_task(key: str) -> bool:
    return key.startswith("task.")


def _choose_settings(frame: Any, texts: Any) -> Any:
    """Which settings the name of each run has: bool [runs, settings].

    A name has these settings:
    - those that differ among the runs of one task, attention and preset;
    - those that the command line changed in some runs of a task and not in others;
    - those outside the attention that differ in the config files of one task and
      preset, as where a file was edited before the other attention was trained;
    - the options of its attention that are named in another task;
    - the options of its task that are named for another attention;
    - the preset, if the report has several.

    Args:
      frame: the runs, as in `name_runs`.
      texts: their settings, a column each, as texts, so that lists can be compared.
    """
    task_and_preset = [frame["task"], texts["preset"]]
    kind = [frame["task"], frame["attention"], texts["preset"]]
    attention_options = [key for key in texts if key.startswith("attention.")]
    other_settings = [key for key in texts if not key.startswith("attention.")]
    task_options = [key for key in texts if _is_of_task(key)]
    is_named = _has_several_values(texts, kind)

    # A setting that the command line left alone is NaN, which counts as a value here,
    # as `str` makes a text of it.
    overrides: Any = pd.DataFrame(list(frame["overrides"]))
    overrides = overrides.reindex(columns=texts.columns)
    is_uneven = _has_several_values(overrides.map(str), frame["task"])
    is_uneven &= overrides.notna()
    # `groupby` has left the column preset out of is_named; `|` adds it, `|=` would not.
    is_named = is_named | is_uneven.groupby(kind).transform("any")

    # What the command line set has been compared above. Here it is NaN, which does not
    # count as a value.
    is_from_file = overrides.isna() & (texts != MISSING)
    is_from_file = is_from_file.mul(frame["has_overrides"], axis=0)
    file_texts = texts.where(is_from_file)[other_settings]
    is_named[other_settings] |= _has_several_values(file_texts, task_and_preset)

    # An option of an attention that is named in one task is named in all tasks.
    is_named[attention_options] = (
        is_named[attention_options].groupby(frame["attention"]).transform("any")
    )
    # An option of a task that is named for one attention is named for all of a preset.
    is_named[task_options] = (
        is_named[task_options].groupby(task_and_preset).transform("any")
    )
    is_named["preset"] = texts["preset"].nunique() > 1
    return is_named


def _has_several_values(values: Any, groups: Any) -> Any:
    """Whether each setting differs within the group of each run: bool [runs, settings].

    Args:
      values: a column for each setting; NaN is no value.
      groups: the columns that name a run's group, as `groupby` takes them.
    """
    return values.groupby(groups).transform("nunique") > 1


def group_names(frame: Any, keys: Sequence[str]) -> pd.Series:
    """Names the group of each run by some of its settings, as in "64 landmarks".

    Args:
      frame: rows with `attention` and `settings`.
      keys: `attention`, or flat keys of the config such as "attention.num_landmarks".

    Raises:
      ConfigError: for a key that no run has.
    """
    for key in keys:
        has_key = any(key in settings for settings in frame["settings"])
        if key != "attention" and not has_key:
            raise ConfigError(
                f"--by={key}: no run has this setting; name attention, or a key of the "
                "config such as attention.num_landmarks"
            )

    names = []
    for _, run in frame.iterrows():
        phrases = []
        for key in keys:
            if key == "attention":
                phrases.append(run["attention"])
            elif run["settings"].get(key) is not None:
                phrases.append(_format_setting(key, run["settings"][key]))
        names.append(", ".join(phrases))
    return pd.Series(names, index=frame.index)


def sort_key(name: Any) -> str:
    """Returns a text by which names are sorted.

    Attentions and tasks have the order of ATTENTION_ORDER and TASK_ORDER; other names
    come after them. Numbers are filled with zeros, so that "8 landmarks" comes before
    "64 landmarks", and 1e-05 before 0.001.
    """
    order = [*ATTENTION_ORDER, *TASK_ORDER]
    rank = order.index(name) if name in order else len(order)
    number = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    return re.sub(number, lambda match: f"{float(match[0]):032.20f}", f"{rank} {name}")
