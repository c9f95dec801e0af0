"""Image: CIFAR-10 in grey, 1,024 intensities, ten classes.

python scripts/train.py --config=configs/image.py:nystrom --workdir=DIR

The archive is found in, or downloaded to, `task.data_dir`.
"""

from ml_collections import ConfigDict, config_dict

from configs import self_pretraining
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "image",
            "max_length": 1024,
            "seed": 0,  # of the validation split
            "source_dir": config_dict.placeholder(str),  # of cifar-10-…
        },
        optimizer={"warmup_steps": 175},
        train={
            "batch_size": 256,
            "num_steps": 35_000,
            "eval_every": 175,
            "checkpoint_every": 350,
        },
        presets={**STAGES, "quick": QUICK, "as_published": AS_PUBLISHED},
    )


AS_PUBLISHED = {"model": {"ignore_id": 0}}  # black

QUICK = {
    "attention": {"num_landmarks": 32, "conv_kernel_size": 0},
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 100},
    "train": {
        "batch_size": 32,
        "num_steps": 1_000,
        "eval_every": 500,
        "checkpoint_every": 500,
    },
}
STAGES = self_pretraining.presets(
    mlm_probability=0.5,
    model=(3, 64, 4, 128),
    rates=(1e-3, 1e-3),
    epochs=(50, 200),
    epoch=1_406,
    quick_steps=1_000,
    fine_batch=50,
    pooling="max",
)
