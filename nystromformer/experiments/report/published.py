"""Test scores that others have published, cited beside runs of their settings."""

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import pandas as pd
from flax.traverse_util import flatten_dict

from lra_tasks import LRA
from nystromformer.experiments.report.names import UNNAMED

AVERAGE = "average"
# In per cent; the numbered sources are in page.notes.
SCORES: Any = pd.read_csv(Path(__file__).with_name("published.csv"))
SCORES["preset"] = SCORES["preset"].fillna("")  # that of the paper's other rows
PUBLISHED_TASKS = (*LRA, "glue")  # configs/TASK.py has the published settings.
PRESETS = ("paper", "as_published", "subwords", "seq1024", "subwords,seq1024")
LONGER = "seq1024"  # the preset that has rows of its own
# What a run of the published settings may choose: how a batch is cut, when it is
# validated, where the data and the pre-trained weights lie, and whether it computes in
# half precision, as the published runs did.
FREE_KEYS = UNNAMED | {
    "preset",
    "train.grad_accum_steps",
    "train.length_buckets",
    "train.eval_every",
    "train.init_from",
    "model.dtype",
    "model.remat",
    "task.tokenizer",
    "task.source_dir",
}


@functools.cache
def read_preset(task: str, words: str) -> dict[str, Any]:
    """Returns the settings of configs/TASK.py:WORDS as JSON has them.

    There are none if the file has no such preset.

    Args:
      task: the name of the task and of its file.
      words: an attention and presets, as in "nystrom,as_published".
    """
    config_file = importlib.import_module(f"configs.{task}")
    try:
        groups = config_file.get_config(words).to_dict()
    except ValueError:  # A user's own file gave its preset the name of a published one.
        return {}
    return flatten_dict(json.loads(json.dumps(groups)), sep=".")


def has_published_settings(run: Any) -> bool:
    """Returns whether a run has the settings of one of PRESETS, but for FREE_KEYS.

    The values are compared. It makes no difference whether a config file or a flag of
    the command line set them.
    """
    settings = run["settings"]
    if settings["task.name"] not in PUBLISHED_TASKS:
        return False
    if settings["preset"] not in PRESETS:
        return False

    # The import is here, since a report on runs of other tasks needs no model.
    from nystromformer.config import default_settings

    # A run that is older than a setting has trained with its default.
    settings = default_settings(run["attention"]) | settings
    words = f"{run['attention']},{run['presets']}"
    published = read_preset(settings["task.name"], words)
    compared = published.keys() & settings.keys()
    compared -= FREE_KEYS
    return bool(compared) and all(settings[x] == published[x] for x in compared)


def cite(run: Any, task: str) -> str:
    """Cites published scores, as in "37.15 [1], 38.51 [2]".

    Args:
      run: a row of `read_runs`.
      task: a task of Table 3, whose runs start from scratch; a set of GLUE, whose runs
        start from pre-trained weights; "mnli mismatched", its other test split; or
        "average", the mean that Table 3 prints.

    Returns:
      The scores; "" if the run's settings are not the published ones, or if no scores
      are published.
    """
    settings = run["settings"]
    presets = (settings["preset"] or "").split(",")
    if "subwords" in presets:
        task = "imdb"
    is_run_from_scratch = not settings["train.init_from"]
    is_score_from_scratch = task in (*LRA, AVERAGE)
    if is_run_from_scratch != is_score_from_scratch or task not in SCORES:
        return ""
    if not has_published_settings(run):
        return ""
    rows = SCORES[SCORES["attention"] == run["attention"]]
    rows = rows[rows["preset"] == (LONGER if LONGER in presets else "")]
    scores = rows.set_index("source")[task].dropna()
    return ", ".join(f"{score:.2f} [{source}]" for source, score in scores.items())
