"""Corpus: hidden tokens of plain text and the order of two parts, as in the paper.

python scripts/train.py --config=configs/corpus.py:nystrom --workdir=DIR
    --config.task.source_dir=TEXTS [--config.task.documents=blank_lines]

The preset is BERT-small. `:nystrom,bert_base` is BERT-base; the paper begins its Nyström run
of 0.25 M steps with an exact model's weights (train.init_from). `:nystrom,bert_base,seq1024`
goes on from 512 tokens to 1,024 (supplement C):

python scripts/train.py --config=configs/corpus.py:nystrom,bert_base,seq1024 --workdir=LONGER
    --config.task.source_dir=TEXTS --config.task.tokenizer=DIR/tokenizer.json
    --config.train.init_from=DIR

`:nystrom,quick` is for two CPU cores: 4 layers of 128, windows of 64 tokens. On IMDb's
reviews it reaches MLM 26.1 % and SOP 53.1 % after 16 minutes on one core, with seed 0
(results/README.md).
"""

from ml_collections import ConfigDict, config_dict

from configs import bert
from configs.defaults import make_config


def get_config(arg: str | None = None) -> ConfigDict:
    """See `configs/defaults.py` for `arg`."""
    return make_config(
        arg,
        task={
            "name": "corpus",
            "max_length": 512,
            "source_dir": config_dict.placeholder(str),  # a folder of plain text
            "pattern": "**/*.txt",
            "documents": "files",  # or "blank_lines": many in a file
            "tokenizer": "bpe",  # learnt here; "byte"; or a tokenizer.json
            "vocab_size": 30_000,
            "seed": 0,  # of splits and swaps
        },
        optimizer={"warmup_steps": 10_000, "weight_decay": 0.01},
        train={
            "batch_size": 256,
            "num_steps": 100_000,
            "eval_every": 1_000,
            "checkpoint_every": 1_000,
        },
        presets={"paper": PAPER, "bert_base": BASE, "seq1024": LONGER, "quick": QUICK},
    )


PAPER = {
    "objective": {"name": "mlm_sop", "mlm_probability": 0.15, "corruption": "bert"},
    "model": bert.SMALL,
    "attention": {**bert.CONVOLUTION, "num_landmarks": 64},
}
BASE = {"model": bert.BASE, "train": {"num_steps": 500_000}}
LONGER = {
    "task": {"max_length": 1_024},
    "optimizer": {"learning_rate": 1e-5, "warmup_steps": 0},
    "train": {"batch_size": 128, "num_steps": 40_000},
}
# Windows are short: in windows of 256 tokens exact attention equals `none` after 1,000
# steps of 16 windows, and fills in 12.1 % after 4,000 (results/README.md).
QUICK = {
    "task": {"max_length": 64, "vocab_size": 8_192},
    "model": bert.QUICK,
    "attention": {
        "num_landmarks": 16,
        "block_size": 8,
        "bucket_size": 16,
        "projection_dim": 16,
        "window": 16,
    },
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 200},
    "train": {
        "batch_size": 64,
        "num_steps": 2_000,
        "eval_every": 250,
        "checkpoint_every": 250,
    },
}
