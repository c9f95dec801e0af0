"""ListOps: nested MIN, MAX, MED and sum-modulo-10 of digits; ten classes.

python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR

The paper's settings: 500 to 2,000 tokens, 5,000 steps.

`:nystrom,quick` is for two CPU cores: expressions of 24 to 48 tokens and 6 landmarks,
so that every expression has at least four times as many tokens as there are landmarks.
What it reaches stands in the README's table, beside the floors.
"""

from ml_collections import ConfigDict, config_dict

from configs import self_pretraining
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "listops",
            "max_length": 2000,
            "num_train": 96_000,
            "num_validation": 2_000,
            "num_test": 2_000,
            "min_length": 501,
            "longest": 1_999,
            "max_depth": 10,
            "max_args": 10,
            "seed": 0,  # of the data
            "source_dir": config_dict.placeholder(str),  # of the released basic_*.tsv
        },
        optimizer={"warmup_steps": 1_000},
        train={
            "batch_size": 32,
            "num_steps": 5_000,
            "eval_every": 50,
            "checkpoint_every": 250,
        },
        presets={
            **STAGES,
            "quick": QUICK,
            "as_published": {"task": {"max_length": 2_048}},  # `longest` stays
            "quick as_published": {},
        },
    )


QUICK = {
    "task": {
        "max_length": 48,
        "min_length": 24,
        "longest": 48,
        "max_depth": 3,
        "max_args": 6,
    },
    "attention": {
        "num_landmarks": 6,
        "block_size": 4,
        "bucket_size": 8,
        "projection_dim": 12,
        "window": 8,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 300},
    "train": {"num_steps": 12_000, "eval_every": 1_000, "checkpoint_every": 1_000},
}
STAGES = self_pretraining.presets(
    mlm_probability=0.1,
    model=(6, 512, 8, 2048),
    rates=(1e-3, 1e-4),
    epochs=(100, 100),
    epoch=3_000,
    quick_steps=12_000,
)
