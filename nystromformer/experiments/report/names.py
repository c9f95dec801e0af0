"""Names of the rows of a report: the settings that tell its runs apart."""

import math
import re
from collections.abc import Mapping, Sequence
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
    "attention.dropout_rate": "dropout {} on its weights",
    "model.short_conv": "short convolution of {}",
    "train.num_steps": "{} steps",
    "train.init_from": "from {}",
}
EXACT_MARK = " (exact)"  # behind a number of landmarks, one for each token
# What these settings are called where they are 0.
PHRASES_OF_ZERO = {
    "attention.conv_kernel_size": "no convolution",
    "attention.dropout_rate": "no dropout on its weights",
    "model.short_conv": "no short convolution",
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
        if "attention.num_landmarks" in phrases and _has_landmark_for_each(values):
            phrases["attention.num_landmarks"] += EXACT_MARK

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
    if value == 0 and key in PHRASES_OF_ZERO:
        return PHRASES_OF_ZERO[key]
    option = key.rpartition(".")[2]
    return PHRASES.get(key, f"{option} {{}}").format(value)


def _has_landmark_for_each(settings: Mapping[str, Any]) -> bool:
    """Whether no sequence has more tokens than landmarks: all attention is exact."""
    if settings.get("attention.by_layer"):
        return False
    max_length = settings.get("task.max_length", math.inf)
    return settings["attention.num_landmarks"] >= max_length


def _is_of_attention(key: str) -> bool:
    return key.startswith("attention.")


def _is_of_task(key: str) -> bool:
    return key.startswith("task.")


def _choose_settings(frame: Any, texts: Any) -> Any:
    """Which settings the name of each run has: bool [runs, settings].

    A name has these settings:
    - those that differ among the runs of one task, attention and preset;
    - those that the command line changed in some runs of a task and not in others;
    - those outside the attention that differ in the config files of one task and
      preset, as where a file was edited before the other attention was trained;
    - the dropout of its attention's weights, since most attentions cannot have any;
    - the options of its attention that are named in another task;
    - the options of its task that are named for another attention;
    - the preset, if the report has several.

    Args:
      frame: the runs, as in `name_runs`.
      texts: their settings, a column each, as texts, so that lists can be compared.
    """
    preset = texts["preset"]
    settings = texts.drop(columns="preset")  # The last rule alone is about the preset.
    task = frame["task"]
    attention = frame["attention"]
    kind = [task, attention, preset]
    overrides: Any = pd.DataFrame(list(frame["overrides"]))
    overrides = overrides.reindex(columns=settings.columns)

    is_named = _has_several_values(settings, kind)
    is_named |= _is_overridden_unevenly(overrides, task, kind)
    is_named |= _differs_between_files(
        settings, overrides, frame["has_overrides"], [task, preset]
    )

    if "attention.dropout_rate" in settings:
        rate = settings["attention.dropout_rate"]
        is_named["attention.dropout_rate"] |= ~rate.isin([MISSING, "0.0", "0"])

    attention_options = [key for key in settings if _is_of_attention(key)]
    by_attention = is_named[attention_options].groupby(attention)
    is_named[attention_options] = by_attention.transform("any")
    task_options = [key for key in settings if _is_of_task(key)]
    by_task = is_named[task_options].groupby([task, preset])
    is_named[task_options] = by_task.transform("any")
    return is_named.assign(preset=preset.nunique() > 1)


def _is_overridden_unevenly(overrides: Any, task: Any, kind: Any) -> Any:
    """Which settings the command line changed in some runs of a task only.

    Args:
      overrides: a column for each setting, NaN where the command line left it alone.
      task: the task of each run.
      kind: the columns of task, attention and preset. A setting that was changed in one
        run of a kind is named in all of them.

    Returns:
      bool [runs, settings].
    """
    # As a text, NaN is a value that differs from those of the command line.
    is_uneven = _has_several_values(overrides.map(str), task) & overrides.notna()
    return is_uneven.groupby(kind).transform("any")


def _differs_between_files(
    settings: Any, overrides: Any, has_overrides: Any, groups: Any
) -> Any:
    """Which settings outside the attention differ between the config files of a group.

    Args:
      settings: a column for each setting, as a text.
      overrides: as for `_is_overridden_unevenly`.
      has_overrides: whether it is known what the command line changed in each run.
      groups: the columns that name a run's group, as `groupby` takes them.

    Returns:
      bool [runs, settings].
    """
    is_from_file = overrides.isna() & (settings != MISSING)
    # Whatever has set an option of the task, runs that differ in it have other data.
    others = [key for key in settings if not _is_of_task(key)]
    is_from_file[others] = is_from_file[others].mul(has_overrides, axis=0)
    differs = _has_several_values(settings.where(is_from_file), groups)
    differs[[key for key in settings if _is_of_attention(key)]] = False
    return differs


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
