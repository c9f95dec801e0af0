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
TASKS = (*LRA, "glue")  # Their files in configs/ have the published settings.
PRESETS = ("paper", "as_published", "subwords")
# What a run of the published settings may choose: how a batch is cut, when it is
# validated, and where the data and the pre-trained weights lie.
FREE_KEYS = UNNAMED | {
    "preset",
    "train.grad_accum_steps",
    "train.length_buckets",
    "train.eval_every",
    "train.init_from",
    "model.remat",
    "task.tokenizer",
    "task.source_dir",
}


@functools.cache
def preset_settings(task: str, words: str) -> dict[str, Any]:
    """The settings of configs/TASK.py:WORDS, by JSON's types; none without it.

    Args:
      task: the name of the task and of its file.
      words: an attention and presets, as in "nystrom,as_published".
    """
    config_file = importlib.import_module(f"configs.{task}")
    try:
        groups = config_file.get_config(words).to_dict()
    except ValueError:  # A preset of somebody's own file has the name of a published.
        return {}
    return flatten_dict(json.loads(json.dumps(groups)), sep=".")


def has_published_settings(run: Any) -> bool:
    """Whether a run is one of these presets, whatever file and flags it came from."""
    settings = run["settings"]
    if settings["task.name"] not in TASKS or settings["preset"] not in PRESETS:
        return False
    words = f"{run['attention']},{run['presets']}"
    published = preset_settings(settings["task.name"], words)
    # An older run may lack a setting that has been added since.
    compared = published.keys() & settings.keys()
    compared -= FREE_KEYS
    return bool(compared) and all(settings[x] == published[x] for x in compared)


def cite(run: Any, task: str) -> str:
    """As in "37.15 [1], 38.51 [2]", if the run has the published settings.

    `task` is of Table 3, which is trained from scratch, its "average" as printed, or a
    set of Table 2, which is fine-tuned.
    """
    settings = run["settings"]
    task = "imdb" if settings["preset"] == "subwords" else task
    is_pretrained = bool(settings["train.init_from"])
    from_scratch = task in (*LRA, AVERAGE)
    if from_scratch == is_pretrained or not has_published_settings(run):
        return ""
    of_attention = SCORES[SCORES["attention"] == run["attention"]].set_index("source")
    scores = of_attention.get(task, of_attention[AVERAGE][:0]).dropna()
    return ", ".join(f"{score:.2f} [{source}]" for source, score in scores.items())
