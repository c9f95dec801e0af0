"""An attention and a task of your own, in one file that is also their config.

python scripts/train.py --config=examples/own.py --workdir=runs/own

The attention averages the values of all valid tokens. The task is IMDb in whole words,
by a tokenizer of your own: replace `token` by any function from a word to an id.
Flags change both, as in --config.attention.scale=2.0 or --config.task.max_length=256.
"""

import dataclasses
import re
import zlib
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict, config_dict

from configs.defaults import make_config
from lra_tasks.split import pad
from lra_tasks.task import register_task
from lra_tasks.text import Text
from nystromformer import register_attention
from nystromformer.attention.base import Attention


class Average(Attention):
    """Every token gets the mean of the valid values, times a number."""

    defaults = {"scale": 1.0}  # what configs give the options of __init__

    def __init__(self, *, scale: float = 1.0, **sizes):
        super().__init__(**sizes)
        self.scale = scale

    def attend(self, query, key, value, mask, precision):
        """Of one head of one sequence: value [S, H] and mask [S] to [T, H]."""
        valid = jnp.ones(len(key), bool) if mask is None else mask
        mean = jnp.where(valid[:, None], value, 0).sum(0)
        mean /= jnp.maximum(valid.sum(), 1)
        return jnp.broadcast_to(self.scale * mean, query.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words(Text):
    """IMDb's reviews, word by word. The options of Text apply, `tokenizer` excepted."""

    name: ClassVar[str] = "words"
    version: ClassVar[str] = "1.0.0"  # raise it whenever the tokens change
    vocab_size: ClassVar[int] = 2**13
    max_length: int = 512

    def token(self, word: str) -> int:
        """1 to vocab_size - 1; 0 is the padding."""
        return 1 + zlib.crc32(word.encode()) % (self.vocab_size - 1)

    def encode(self, texts):
        words = (re.findall(r"\w+|[^\w\s]", text.lower()) for text in texts)
        ids = (map(self.token, found[: self.max_length]) for found in words)
        rows = [np.array([*row], np.uint16) for row in ids]
        return pad(rows, self.max_length, np.uint16)

    def decode(self, tokens):
        return " ".join(map(str, tokens))


register_attention("average", Average)
register_task("words", Words)


def get_config(arg: str | None = None) -> ConfigDict:
    """`arg`: an attention and presets, as in examples/own.py:nystrom."""
    return make_config(
        arg or "average",
        task={
            "name": "words",
            "max_length": 512,
            "source_dir": config_dict.placeholder(str),  # of aclImdb or its archive
        },
        optimizer={"learning_rate": 1e-3, "warmup_steps": 100},
        train={
            "batch_size": 32,
            "num_steps": 2_000,
            "eval_every": 500,
            "checkpoint_every": 500,
        },
        presets={},
    )
