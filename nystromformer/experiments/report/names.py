"""The names of the rows of a report.

A row is named by the settings in which the runs differ; the tables and figures of a
report group by these names. Three runs of 500 steps and one of 700 are so named
"linear", "softmax", "nystrom" and "nystrom, train.num_steps=700".

A name has what tells a run from others of its task and preset. How many options an
attention has, and how its batch is cut, differs by nature from attention to attention,
so these are compared among runs of one attention alone:

| setting                      | stands in the names of                             |
| ---------------------------- | -------------------------------------------------- |
| preset                       | all runs, if those of a task have several          |
| task.max_length              | runs of the task and preset, if they differ        |
| attention.num_landmarks      | runs of the attention and preset in all tasks, if  |
|                              | they differ in one task                            |
| attention.dropout_rate       | these, and every run that drops attention weights  |
| train.grad_accum_steps       | runs of the task, preset and attention, if they    |
|                              | differ                                             |
| train.num_steps and the rest | runs of the task and preset, if they differ, but   |
|                              | for those that have the usual value                |
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from nystromformer.errors import ConfigError
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT

# Settings that no name needs: they change no number, or stand beside it anyway.
UNNAMED = SETTINGS_WITHOUT_EFFECT | {"task.name", "attention.name", "train.seed"}
# How a batch is cut to fit the memory, which attentions need to a different extent.
CUTS_OF_A_BATCH = {"train.grad_accum_steps", "train.length_buckets", "model.remat"}
MISSING = repr(math.nan)  # the text of a setting that a run's config does not have


class Name(NamedTuple):
    """The parts of a run's name, texts of words with commas between.

    A setting is written as its flag is, as in "train.num_steps=700"; those of the
    attention are without their group, as in "num_landmarks=8".

    label: the whole name. Runs of one label differ in nothing but their seed.
    row: the label without the options of the task.
    data: the options of the task, as in "num_pairs=16".
    preset: the preset where there are several, as in "preset=quick".
    """

    label: str
    row: str
    data: str
    preset: str

    def add_to_row(self, word: str) -> "Name":
        """Returns the name with one more word of its row."""
        return self._replace(
            label=_join_words([self.label, word]), row=_join_words([self.row, word])
        )

    def add_to_data(self, word: str) -> "Name":
        """Returns the name with one more word on its data."""
        return self._replace(
            label=_join_words([self.label, word]), data=_join_words([self.data, word])
        )


def _join_words(words: Sequence[str]) -> str:
    return ", ".join(filter(None, words))


def name_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Names each run by its attention and the settings in which the runs differ.

    Args:
      frame: a row for each run and metric, numbered from 0.

    Returns:
      The parts of each `Name`, a column each.

    Raises:
      ConfigError: for two runs of equal settings and seed in one folder.
    """
    names = _name_by_settings(frame)
    names = _tell_test_data_apart(frame, names)
    names = _tell_equal_runs_apart(frame, names)
    return pd.DataFrame(names, index=frame.index)


def _name_by_settings(frame: pd.DataFrame) -> list[Name]:
    """The name of each run, which has only settings."""
    settings = pd.DataFrame(list(frame["settings"]))
    texts = settings.drop(columns=[key for key in settings if key in UNNAMED])
    is_named = _choose_settings(texts.map(repr), frame["task"], frame["attention"])
    is_named = is_named.loc[:, is_named.any()]
    keys = sorted(
        is_named, key=lambda x: (x != "preset", not x.startswith("attention."))
    )
    names = []
    for index, values in frame["settings"].items():
        keys_of_run = [
            key
            for key in keys
            if is_named.at[index, key] and values.get(key) is not None
        ]
        names.append(_name_run(frame.at[index, "attention"], values, keys_of_run))
    return names


def _name_run(attention: str, settings: Mapping[str, Any], keys: Sequence[str]) -> Name:
    """The name of an attention with the settings of these keys."""
    row_words = [attention]
    data_words = []
    for key in keys:
        value = settings[key]
        group, _, option = key.rpartition(".")
        if group == "task":
            data_words.append(f"{option}={value}")
        elif key == "attention.dropout_rate":
            row_words.append(f"dropout {value} on its weights")
        else:
            row_words.append(f"{key.removeprefix('attention.')}={value}")
    has_preset = "preset" in keys and settings["preset"]
    return Name(
        label=_join_words(row_words + data_words),
        row=_join_words(row_words),
        data=_join_words(data_words),
        preset=f"preset={settings['preset']}" if has_preset else "",
    )


def _choose_settings(
    texts: pd.DataFrame, task: pd.Series, attention: pd.Series
) -> pd.DataFrame:
    """Which settings each name has, by the table at the top: bool [runs, settings].

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
        elif values.nunique() == 1 and key != "attention.dropout_rate":
            # It tells no runs apart. Most settings are such, and groups take a while.
            is_named[key] = pd.Series(False, index=texts.index)
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


def _differs(values: pd.Series, groups: Sequence[pd.Series]) -> pd.Series:
    """Whether a setting has several values in the group of each run."""
    return values.groupby(groups).transform("nunique") > 1


def _is_usual(values: pd.Series) -> pd.Series:
    """Whether each run has the value that needs no name: None, or that of most runs.

    A name cannot say None, or that a config does not have the setting, so that these
    are the usual value wherever a run has them.
    """
    is_none = values.isin(["None", MISSING])
    if is_none.any():
        return is_none
    return values.map(values.value_counts(normalize=True)) > 0.5


def _tell_test_data_apart(frame: pd.DataFrame, names: Sequence[Name]) -> list[Name]:
    """The names, in which runs of equal options have their test split if these differ.

    They then have a column for each test split.
    """
    new_names = list(names)
    named_runs = frame.join(pd.DataFrame(names, index=frame.index))
    groups = named_runs.groupby(["column", "preset", "data"], sort=False)
    for _, hashes in groups["test_data"]:
        if hashes.nunique() < 2:
            continue
        for index, sha256 in hashes.items():
            text = "unknown" if pd.isna(sha256) else sha256[:8]
            new_names[index] = names[index].add_to_data(f"test data {text}")
    return new_names


def _tell_equal_runs_apart(frame: pd.DataFrame, names: Sequence[Name]) -> list[Name]:
    """The names, in which runs of equal settings and seeds have their folders.

    Raises:
      ConfigError: for two such runs in one folder.
    """
    new_names = list(names)
    named_runs = frame.join(pd.DataFrame(names, index=frame.index))
    keys = ["column", "label", "seed"]
    is_equal = named_runs.duplicated(keys, keep=False)
    for _, equal_runs in named_runs[is_equal].groupby(keys):
        folders = equal_runs["run"].str.rpartition("/")[0]
        if folders.duplicated().any():
            runs = ", ".join(equal_runs["run"])
            raise ConfigError(
                "these runs have equal settings and seed; report on them apart, or "
                "keep one, and delete the others: their folders and entries in "
                f"sweep.json, or their lines in runs.jsonl: {runs}"
            )
    rows = [named_runs["column"], named_runs["label"]]
    is_ambiguous = is_equal.groupby(rows).transform("any")
    for index, run in named_runs.loc[is_ambiguous, "run"].items():
        folder = run.rpartition("/")[0] or "no folder"
        new_names[index] = names[index].add_to_row(f"in {folder}")
    return new_names
