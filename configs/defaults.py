"""The paper's settings that all tasks share. Those of an attention are in its file.

A config file names a task, its published settings (the paper preset) and a `quick`
preset for two CPU cores. `--config=FILE:ARG` picks from them: ARG is an attention and
presets, separated by commas, as in `configs/listops.py:nystrom,quick`; of two presets
the later wins. Beside `quick` a preset may be another: the file's "quick NAME".
"""

import copy
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from nystromformer.attention import ATTENTIONS

OBJECTIVE = {"name": "classification"}

MODEL = {
    "num_layers": 2,
    "num_heads": 2,
    "model_dim": 64,
    "mlp_dim": 128,
    "dropout_rate": 0.1,
    "dtype": "float32",  # or "bfloat16"
    "remat": "none",  # "block" recomputes in the backward pass instead of storing
    "pooling": "mean",  # over valid tokens; or "padded_mean", "max", "cls_token"
    "ignore_id": config_dict.placeholder(int),  # an id that is padding anywhere
}

OPTIMIZER = {
    "learning_rate": 1e-4,  # the peak; from peak/25, linear down to peak/25e4
    "weight_decay": 0.0,
    "b1": 0.9,
    "b2": 0.999,
    "eps": 1e-6,
    "cycle_b1": False,  # b1 from 0.95 down to 0.85 at the peak of the rate, and back
    "decay": "linear",  # or "none": the rate stays at its peak
}

MASKED = {"name": "mlm", "mlm_probability": 0.15, "corruption": "mask_only"}

PRESETS: dict[str, dict[str, dict[str, Any]]] = {  # of every task
    "paper": {},
    "pretrain": {"objective": MASKED},
    # What the published runs did otherwise than the paper says; a task's file adds its
    # own, as the power of two to which they padded every sequence. README, "Where it
    # differs from the published code".
    "as_published": {
        "model": {"pooling": "padded_mean"},
        "optimizer": {"cycle_b1": True},
        "attention": {
            "landmark_padding": "count",
            "pinv_init": "per_batch",
            "sharing": "layerwise_per_head",
            "kernel": "published",
            "lsh_scope": "chunk",
        },
    },
}

TRAIN = {
    "seed": 0,
    "log_every": 50,
    "grad_accum_steps": 1,  # parts of a batch, one after another in less memory
    "length_buckets": 1,  # lengths to pad to; more save time where lengths differ
    "init_from": config_dict.placeholder(str),  # the workdir of a finished run
    "num_epochs": config_dict.placeholder(float),  # instead of num_steps
}


def make_config(
    arg: str | None,
    *,
    task: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    train: Mapping[str, Any],
    presets: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> ConfigDict:
    """The config of one task: the paper's settings, then those of the named preset.

    Args:
      arg: an attention and presets, separated by commas; nothing: nystrom, paper.
      task: name, max_length and the task's options.
      optimizer: what differs from OPTIMIZER.
      train: the group `train`.
      presets: preset -> group -> key -> value, after those of PRESETS; a preset's group
        "attention" holds options for the attentions that have them. "paper" comes
        before all others.
    """
    name = "nystrom"
    # Copied, since a placeholder that is set would be set in every config.
    groups: dict[str, dict[str, Any]] = copy.deepcopy(
        {
            "task": {"data_dir": config_dict.placeholder(str), **task},
            "objective": dict(OBJECTIVE),
            "model": dict(MODEL),
            "attention": {},
            "optimizer": {**OPTIMIZER, **optimizer},
            "train": {**TRAIN, **train},
        }
    )
    words = [word for word in (arg or "").split(",") if word]
    for word in ["paper", *words]:
        beside = f"quick {word}" if "quick" in words else word
        if word in ATTENTIONS:
            name = word
        elif word in PRESETS or word in presets:
            for changes in (PRESETS.get(word), presets.get(beside, presets.get(word))):
                for group, values in (changes or {}).items():
                    if group == "objective" and "name" in values:
                        groups[group] = {}  # the options are another objective's
                    groups[group] |= values
        else:
            known = {**ATTENTIONS, **PRESETS, **presets}
            known = ", ".join(x for x in known if " " not in x)
            raise ValueError(f"unknown attention or preset {word!r}; known: {known}")

    options, changed = ATTENTIONS[name].defaults, groups["attention"]
    known = {key: value for key, value in changed.items() if key in options}
    groups["attention"] = {"name": name, **options, **known}
    return ConfigDict(groups)
