"""GLUE: SST-2, MRPC, QNLI, QQP and MNLI, fine-tuned from a run on a corpus.

python scripts/train.py --config=configs/glue.py:nystrom,mrpc --workdir=DIR
    --config.task.source_dir=GLUE --config.task.tokenizer=PRETRAINED/tokenizer.json
    --config.train.init_from=PRETRAINED

GLUE is the folder of SST-2/, MRPC/, …; PRETRAINED a run of `configs/corpus.py` of the
same size: BERT-base, or with `quick` its quick one. `mnli_mm` is MNLI tested on the
mismatched part.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from configs import bert
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`: SST-2, or the subset that it names."""
    return make_config(
        arg,
        task={
            "name": "glue",
            "subset": "sst2",
            "max_length": 512,
            "seed": 0,  # of the tenth of train held out for validation
            "tokenizer": "byte",  # or a tokenizer.json
            "source_dir": config_dict.placeholder(str),
        },
        optimizer={"learning_rate": 3e-5, "weight_decay": 0.01, "warmup_steps": 100},
        train={"batch_size": 32, **of_epochs(67_349)},
        presets={
            "paper": PAPER,
            "quick": QUICK,
            "mrpc": _subset("mrpc", 3_668, "f1"),
            "qnli": _subset("qnli", 104_743),
            "qqp": _subset("qqp", 363_846, "f1"),
            "mnli": _subset("mnli", 392_702),
            "mnli_mm": _subset("mnli_mm", 392_702),
        },
    )


def of_epochs(examples: int) -> Mapping[str, Any]:
    """The group `train` of four epochs, validated twice in each."""
    epoch = int(0.9 * examples) // 32  # about; num_epochs counts what is there
    every = epoch // 2
    steps = {"num_steps": 4 * epoch, "eval_every": every, "checkpoint_every": every}
    return {"num_epochs": 4.0, **steps}


def _subset(name: str, examples: int, select: str = "accuracy") -> Mapping[str, Any]:
    return {
        "task": {"subset": name},
        "objective": {"select": select},
        "train": of_epochs(examples),
    }


PAPER = {
    "objective": {"select": "accuracy"},
    "model": bert.BASE,
    "attention": {**bert.CONVOLUTION, "num_landmarks": 64},
}
QUICK = {
    "task": {"max_length": 128},
    "model": bert.QUICK,
    "attention": {"num_landmarks": 32, "window": 32, "projection_dim": 64},
    "optimizer": {"learning_rate": 1e-4},
}
