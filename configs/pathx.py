"""Path-X: Pathfinder at 128 × 128, 16,384 pixels, two classes.

python scripts/train.py --config=configs/pathx.py:nystrom,gpu --workdir=DIR

Not in the paper: the settings are those of Pathfinder at a sixteenth of the batch.
`gpu` fits one GPU; `quick` only shows that all of it runs: 20 steps on 100 pictures.
"""

from ml_collections import ConfigDict, config_dict

from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "pathx",
            "max_length": 16_384,  # = resolution²
            "resolution": 128,
            "difficulty": "hard",
            "num_examples": 200_000,  # 80 / 10 / 10 %
            "seed": 0,  # of the pictures
            "num_workers": 1,  # processes that draw them
            "source_dir": config_dict.placeholder(str),  # of the released pathfinder128
        },
        optimizer={"warmup_steps": 312},
        train={
            "batch_size": 16,
            "num_steps": 62_400,
            "eval_every": 3_120,
            "checkpoint_every": 3_120,
        },
        presets={"gpu": GPU, "quick": QUICK, "as_published": AS_PUBLISHED},
    )


AS_PUBLISHED = {"model": {"ignore_id": 0}}  # black

GPU = {"model": {"dtype": "bfloat16", "remat": "block"}, "train": {"batch_size": 32}}

QUICK = {
    "task": {"num_examples": 100},
    "attention": {"num_landmarks": 64, "conv_kernel_size": 0},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 5},
    "train": {
        "batch_size": 2,
        "num_steps": 20,
        "eval_every": 10,
        "checkpoint_every": 20,
    },
}
