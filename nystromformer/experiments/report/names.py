"""Names of the rows of a report: the settings that tell its runs apart."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lra_tasks import LRA
from nystromformer.errors import ConfigError
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT

# The order of the rows and columns; what has no place here comes after them.
ATTENTIONS = (
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
TASKS = (*LRA, "pathx", "corpus", "glue", "labelled_texts", "recall")
# Settings that no name needs: they change no number, or stand beside it anyway.
UNNAMED = SETTINGS_WITHOUT_EFFECT | {"task.name", "attention.name", "train.seed"}
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
    """Writes seed* for a run's own seed in the folders that its settings name.

    So runs that start from a run of their own seed share a row. The seed stays where
    runs of several seeds start from the same folder.
    """
    for key in ("train.init_from", "task.tokenizer"):
        folders = pd.Series([settings.get(key) for settings in frame["settings"]])
        groups = frame["seed"].groupby([folders, frame["task"], frame["attention"]])
        has_one_seed = groups.transform("nunique") == 1
        for seed, settings in frame.loc[has_one_seed, ["seed", "settings"]].to_numpy():
            own_seed = rf"seed{seed}(?!\d)"
            settings[key] = re.sub(own_seed, "seed*", settings[key])


def name_runs(frame: Any) -> pd.DataFrame:
    """Names each run by its attention and the settings that tell it apart.

    Args:
      frame: rows with `task`, `attention`, `settings` and `overrides`.

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

    - A setting that differs among the runs of one task, attention and preset.
    - A setting that the command line changed in some runs of a task, and not in others.
    - An option of an attention is named in every task as soon as it is in one.
    - An option of a task is named for every attention as soon as it is for one.
    - The preset, if the report has several.
    """
    kinds = [frame["task"], frame["attention"], texts["preset"]]
    is_different = texts.groupby(kinds).transform("nunique") > 1

    overrides: Any = pd.DataFrame(list(frame["overrides"]))
    overrides = overrides.reindex(columns=texts.columns)
    by_task = overrides.map(str).groupby(frame["task"])
    is_uneven = (by_task.transform("nunique") > 1) & overrides.notna()
    is_named = is_different | is_uneven.groupby(kinds).transform("any")

    # What is named in one task is named in all.
    options = [key for key in texts if key.startswith("attention.")]
    by_attention = is_named[options].groupby(frame["attention"])
    is_named[options] = by_attention.transform("any")

    # What is named for one attention is named for all.
    options = [key for key in texts if _is_of_task(key)]
    by_data = is_named[options].groupby([frame["task"], texts["preset"]])
    is_named[options] = by_data.transform("any")

    is_named["preset"] = texts["preset"].nunique() > 1
    return is_named


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
    """The place of a name: as in the tables of attentions and tasks, then by numbers.

    Numbers are compared by their values: "8 landmarks" comes before "64 landmarks".
    """
    tables = [*ATTENTIONS, *TASKS]
    rank = tables.index(name) if name in tables else len(tables)
    return re.sub(r"\d+", lambda number: number[0].zfill(9), f"{rank} {name}")
