"""Text: is a film review positive? 4,000 bytes, two classes.

python scripts/train.py --config=configs/text.py:nystrom --workdir=DIR

The archive is found in, or downloaded to, `task.data_dir`.

`:nystrom,quick` is for two CPU cores: the first 512 bytes of each review. Test accuracy
is 59.5 ± 1.0 % over three seeds, in 200 s each (commit 6ae9f0d; results/README.md,
"Pre-training").

`:nystrom,subwords` is the paper's IMDb: fine-tuned from a run of `configs/corpus.py` by
`--config.train.init_from=DIR --config.task.tokenizer=DIR/tokenizer.json`; likewise
`:nystrom,quick,subwords`: 85.4 % in four epochs after pre-training on windows of 256
tokens, 84.7 % from scratch (seed 0, 64 landmarks; results/README.md). After a quick
run on windows of 64 tokens, the positions are repeated.
"""

from ml_collections import ConfigDict, config_dict

from configs import bert, self_pretraining
from configs.defaults import make_config
from configs.glue import of_epochs


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "text",
            "max_length": 4000,
            "num_bytes": config_dict.placeholder(int),  # kept; None: all that fit
            "validation": "held_out",  # a tenth of train; "test": as published
            "seed": 0,  # of that tenth
            "source_dir": config_dict.placeholder(str),  # of aclImdb or its archive
        },
        optimizer={"warmup_steps": 8_000},
        train={
            "batch_size": 32,
            "num_steps": 20_000,
            "eval_every": 500,
            "checkpoint_every": 500,
        },
        presets={
            **STAGES,
            "quick": QUICK,
            "as_published": AS_PUBLISHED,
            "quick as_published": {},
            "subwords": SUBWORDS,
            "quick subwords": QUICK_SUBWORDS,
        },
    )


# As its data script cuts; the published config says 4,000.
AS_PUBLISHED = {"task": {"max_length": 1_024, "num_bytes": 1_000}}

QUICK = {
    "task": {"max_length": 512},
    "attention": {
        "num_landmarks": 32,
        "conv_kernel_size": 0,
        "block_size": 32,
        "projection_dim": 64,
        "window": 64,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 100},
    "train": {"num_steps": 1_000, "eval_every": 250, "checkpoint_every": 500},
}
STAGES = self_pretraining.presets(
    mlm_probability=0.15,
    model=(6, 512, 8, 2048),
    rates=(5e-4, 1e-4),
    epochs=(32, 65),
    epoch=703,
    quick_steps=1_000,
)
# The paper's IMDb, on the sub-words of the run of configs/corpus.py in train.init_from.
SUBWORDS = {
    "task": {"max_length": 512, "tokenizer": "byte"},
    "model": bert.BASE,
    "attention": {**bert.CONVOLUTION, "num_landmarks": 64},
    "optimizer": {"learning_rate": 3e-5, "weight_decay": 0.01, "warmup_steps": 100},
    "train": {**of_epochs(25_000)},
}
QUICK_SUBWORDS = {
    **SUBWORDS,
    "task": {"max_length": 256, "tokenizer": "byte"},
    "model": bert.QUICK,
    "attention": {**bert.CONVOLUTION, "num_landmarks": 32, "projection_dim": 64},
    "optimizer": {"learning_rate": 1e-4, "weight_decay": 0.01, "warmup_steps": 100},
}
