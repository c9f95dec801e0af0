"""Test scores that others have published, cited beside runs of their settings."""

from pathlib import Path
from typing import Any

import pandas as pd

from lra_tasks.task import LRA
from nystromformer.experiments.report.runs import UNNAMED

AVERAGE = "average"
# In per cent; the numbered sources are in page.notes.
SCORES: Any = pd.read_csv(Path(__file__).with_name("published.csv"))
PRESETS = ("paper", "as_published", "subwords")  # of the published settings
# What may be changed in a run beside them: how a batch is cut, when it is validated,
# the number of landmarks, and where the data and the pre-trained weights lie.
STILL_PUBLISHED = UNNAMED | {
    *("train.grad_accum_steps", "train.length_buckets", "train.eval_every"),
    *("model.remat", "attention.num_landmarks", "train.init_from", "task.tokenizer"),
    "task.source_dir",
}


def cite(run: Any, task: str) -> str:
    """As in "37.15 [1], 38.51 [2]", if the run has the published settings.

    `task` is of Table 3, which is trained from scratch, its "average" as printed, or a
    set of Table 2, which is fine-tuned.
    """
    preset, pretrained = (run["settings"][x] for x in ("preset", "train.init_from"))
    task = "imdb" if preset == "subwords" else task
    scratch = task in (*LRA, AVERAGE)
    changed = {key for key in run["facts"] if "." in key} - STILL_PUBLISHED
    own = f"configs/{run['settings']['task.name']}.py" not in run["command"]
    if own or preset not in PRESETS or changed or scratch == bool(pretrained):
        return ""
    theirs = SCORES[SCORES["attention"] == run["attention"]].set_index("source")
    found = theirs.get(task, theirs[AVERAGE][:0]).dropna()
    return ", ".join(f"{score:.2f} [{source}]" for source, score in found.items())
