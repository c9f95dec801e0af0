"""Retrieval: does one paper cite the other? 2 × 4,000 bytes, two classes.

python scripts/train.py --config=configs/retrieval.py:nystrom --workdir=DIR

The release is looked for in `task.data_dir` (7.7 GB: it is not downloaded unasked).

`:nystrom,quick` is for two CPU cores: the first 256 bytes of each paper. Not measured
on the release; on 20,768 pairs of other papers in its format validation is 59.4 % at
step 250, 64.2 % at 500 and 64.8 % at 750 (seed 0, commit c91d469).
"""

from ml_collections import ConfigDict, config_dict

from configs import self_pretraining
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "retrieval",
            "max_length": 4000,
            "num_bytes": config_dict.placeholder(int),  # kept; None: all that fit
            "source_dir": config_dict.placeholder(str),  # of lra_release or tsv_data
        },
        optimizer={"warmup_steps": 800},
        train={
            "batch_size": 32,
            "num_steps": 30_000,
            "eval_every": 300,
            "checkpoint_every": 300,
        },
        presets={
            **STAGES,
            "quick": QUICK,
            "as_published": {"task": {"max_length": 4_096, "num_bytes": 4_000}},
            "quick as_published": {},
        },
    )


QUICK = {
    "task": {"max_length": 256},
    "attention": {
        "num_landmarks": 32,
        "conv_kernel_size": 0,
        "block_size": 16,
        "bucket_size": 32,
        "projection_dim": 32,
        "window": 32,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 100},
    "train": {"num_steps": 1_000, "eval_every": 250, "checkpoint_every": 500},
}
STAGES = self_pretraining.presets(
    mlm_probability=0.15,
    model=(4, 128, 4, 512),
    rates=(5e-3, 5e-4),
    epochs=(32, 32),
    epoch=4_596,
    quick_steps=1_000,
)
