"""Names of the rows of a report: the settings that tell its runs apart."""

import re
from typing import Any

import pandas as pd

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments.workdir import NUMBERLESS

# Settings that no name needs: they change no number, or stand beside it anyway.
UNNAMED = NUMBERLESS | {"task.name", "attention.name", "train.seed"}
DATA_SETTINGS = ("preset", "task.")  # the beginnings of keys that may change the floors
PHRASES = {
    "preset": "{} preset",
    "task.num_pairs": "{} pairs",
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


def name_runs(frame: Any) -> tuple[list[str], list[str]]:
    """Names each run by its attention and the settings that tell it apart.

    Runs of one name differ in nothing but their seed.

    Args:
      frame: rows with `task`, `attention`, `settings` and `overrides`.

    Returns:
      The names of the rows, and the part of each name that is about the data.
    """
    settings = pd.DataFrame(list(frame["settings"]))
    unnamed = [key for key in settings if key in UNNAMED]
    texts = settings.drop(columns=unnamed).map(repr)
    is_named = _named_settings(frame, texts)

    names = []
    data_names = []
    for index, values in frame["settings"].items():
        phrases = {}
        for key in texts:
            if is_named.at[index, key] and values.get(key) is not None:
                phrase = PHRASES.get(key, f"{key.rpartition('.')[2]} {{}}")
                phrases[key] = phrase.format(values[key])

        names.append(", ".join([frame.at[index, "attention"], *phrases.values()]))
        about_data = [phrases[key] for key in phrases if key.startswith(DATA_SETTINGS)]
        data_names.append(", ".join(about_data))
    return names, data_names


def _named_settings(frame: Any, texts: Any) -> Any:
    """Which settings the name of each run has: bool [runs, settings].

    These are the settings that differ among the runs of a task, attention and preset;
    what the command line changed in a part of a task's runs; an attention's option in
    all tasks if in one; and the preset, if there are several.
    """
    kinds = [frame["task"], frame["attention"], texts["preset"]]
    is_different = texts.groupby(kinds).transform("nunique") > 1

    overrides: Any = pd.DataFrame(list(frame["overrides"]))
    overrides = overrides.reindex(columns=texts.columns)
    by_task = overrides.map(str).groupby(frame["task"])
    is_uneven = (by_task.transform("nunique") > 1) & overrides.notna()
    is_named = is_different | is_uneven.groupby(kinds).transform("any")

    options = [key for key in texts if key.startswith("attention.")]
    by_attention = is_named[options].groupby(frame["attention"])
    is_named[options] = by_attention.transform("any")
    is_named["preset"] = texts["preset"].nunique() > 1
    return is_named


def sort_key(name: Any) -> str:
    """The place of a name: as in the tables of attentions and tasks, then by numbers.

    Numbers are compared by their values: "8 landmarks" comes before "64 landmarks".
    """
    tables = [*ATTENTIONS, *TASKS]
    rank = tables.index(name) if name in tables else len(tables)
    return re.sub(r"\d+", lambda number: number[0].zfill(9), f"{rank} {name}")
