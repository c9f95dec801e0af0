"""The preset of configs/ that a run comes from, and its command."""

import functools
import importlib
import shlex
from collections.abc import Mapping
from typing import Any

from lra_tasks.task import LRA, TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config

SUBSETS = ("mrpc", "qnli", "qqp", "mnli", "mnli_mm")
PRESETS = (  # a task need not have all
    *("paper", "as_published", "quick", "quick,as_published", "gpu"),
    *("bert_base", "bert_base,seq1024"),
    *("pretrain", "quick,pretrain", "finetune", "subwords", "quick,subwords"),
    *SUBSETS,
    *(f"quick,{subset}" for subset in SUBSETS),
)
SOURCE = {"train.init_from", "task.tokenizer"}  # of what is fine-tuned
Settings = Mapping[str, Mapping[str, Any]]  # group -> key -> value
# What leaves a run the paper's: how a batch is cut, when it is validated, and the
# number of landmarks, which stands in the row's name.
STILL_PAPER = {
    *(
        "train.seed",
        "train.grad_accum_steps",
        "train.length_buckets",
        "train.eval_every",
    ),
    *("model.remat", "attention.num_landmarks"),
}


def flatten(config: Settings) -> dict[str, Any]:
    """The config as "group.key" -> value; steps that come from epochs are left out."""
    flat = {f"{group}.{k}": x for group, of in config.items() for k, x in of.items()}
    if flat.get("train.num_epochs"):
        del flat["train.num_steps"]
    return flat


@functools.cache
def _settings(task: str, attention: str) -> dict[str, dict[str, Any]]:
    """Preset -> its settings, for the presets that the task has."""
    module, found = importlib.import_module(f"configs.{task}"), {}
    for preset in PRESETS:
        try:
            mapping = module.get_config(f"{attention},{preset}").to_dict()
        except ValueError:
            continue
        found[preset] = flatten(Config.from_mapping(mapping).to_mapping())
    return found


def nearest_preset(config: Settings, without: set[str]) -> tuple[str, dict[str, Any]]:
    """The preset with the fewest differences, and these: "group.key" -> value.

    A task of another package has none: "". Keys in `without` do not count, nor do the
    options of another package's attention.
    """
    task, attention = config["task"]["name"], config["attention"]["name"]
    if task not in TASKS:
        return "", {}
    ours = {key: x for key, x in flatten(config).items() if key not in without}
    if attention not in ATTENTIONS:
        attention = "identity"
        ours = {k: x for k, x in ours.items() if not k.startswith("attention.")}
    changes = {
        preset: {k: x for k, x in ours.items() if k not in theirs or theirs[k] != x}
        for preset, theirs in _settings(task, attention).items()
    }
    return min(changes.items(), key=lambda item: len(item[1]))


def is_paper(task: str, preset: str, changes: Mapping[str, Any]) -> bool:
    """Whether published numbers may be shown beside such a run."""
    if preset in ("subwords", *SUBSETS) or (task, preset) == ("glue", "paper"):
        return SOURCE <= changes.keys() <= STILL_PAPER | SOURCE
    is_whole = preset in ("paper", "as_published")
    return task in LRA and is_whole and changes.keys() <= STILL_PAPER


def command(config: Settings, workdir: str) -> str | None:
    """The command line of scripts/train.py; where the data lie is left out.

    None for what another package has brought: its config file is not known here.
    """
    name, attention = config["task"]["name"], config["attention"]["name"]
    if name not in TASKS or attention not in ATTENTIONS:
        return None
    preset, changes = nearest_preset(config, without={"task.data_dir"})
    suffix = "" if preset == "paper" else f",{preset}"
    words = [
        *("python", "scripts/train.py"),
        f"--config=configs/{name}.py:{attention}{suffix}",
        *(f"--config.{key}={value}" for key, value in changes.items()),
        f"--workdir={workdir}",
    ]
    return shlex.join(words)
