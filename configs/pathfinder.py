"""Pathfinder: do two markers sit on one dashed contour? 1,024 pixels, two classes.

python scripts/train.py --config=configs/pathfinder.py:nystrom --workdir=DIR

The pictures are drawn first, which `scripts/prepare_data.py --task=pathfinder` does on
all cores. `quick` draws 5,000 with short contours.
"""

from ml_collections import ConfigDict, config_dict

from configs import self_pretraining
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "pathfinder",
            "max_length": 1024,  # = resolution²
            "resolution": 32,  # 32, 64, 128, 256
            "difficulty": "hard",  # contours of 14 paddles; easy: 6, intermediate: 9
            "num_examples": 200_000,  # 80 / 10 / 10 %
            "seed": 0,  # of the pictures
            "num_workers": 1,  # processes that draw them
            "source_dir": config_dict.placeholder(str),  # of the released pathfinder32
        },
        optimizer={"warmup_steps": 312},
        train={
            "batch_size": 256,
            "num_steps": 62_400,
            "eval_every": 312,
            "checkpoint_every": 624,
        },
        presets={**STAGES, "quick": QUICK, "as_published": AS_PUBLISHED},
    )


AS_PUBLISHED = {"model": {"ignore_id": 0}}  # black

QUICK = {
    "task": {"difficulty": "easy", "num_examples": 5_000},
    "attention": {"num_landmarks": 32, "conv_kernel_size": 0},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 100},
    "train": {
        "batch_size": 32,
        "num_steps": 1_000,
        "eval_every": 250,
        "checkpoint_every": 500,
    },
}
STAGES = self_pretraining.presets(
    mlm_probability=0.5,
    model=(4, 128, 8, 128),
    rates=(1e-3, 5e-4),
    epochs=(50, 200),
    epoch=5_000,
    quick_steps=1_000,
)
