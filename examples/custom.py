"""An attention, a task and an objective of your own, in one file that is their config.

python scripts/train.py --config=examples/custom.py --workdir=runs/custom

The attention averages the values of all valid tokens. The task is IMDb in whole words,
by a tokenizer of your own: replace `token` by any function from a word to an id. The
objective is the Brier score. --config.attention.scale=2.0 changes an option.

With --load=examples/custom.py every command knows them, beside any config:

python scripts/sweep.py --load=examples/custom.py --config=configs/listops.py:quick
    --grid=attention.name=average,nystrom,softmax --workdir=runs/comparison
"""

import dataclasses
import re
import zlib
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs.defaults import make_config
from lra_tasks.split import pad
from lra_tasks.task import register_task
from lra_tasks.text import Text
from nystromformer import register_attention
from nystromformer.attention.base import Attention
from nystromformer.experiments.objectives import (
    ObjectiveSpec,
    make_classifier,
    register_objective,
)


class Average(Attention):
    """Every token gets the mean of the valid values, times a number."""

    def __init__(self, *, scale: float = 1.0, **common):
        # An option: --config.attention.scale. All attentions have the other arguments.
        super().__init__(**common)
        self.scale = scale

    def attend(self, query, key, value, mask, precision):
        """One head of one sequence: value [S, H] and mask [S] or None to [T, H]."""
        valid = jnp.ones(len(key), bool) if mask is None else mask
        mean = jnp.where(valid[:, None], value, 0).sum(0)
        mean /= jnp.maximum(valid.sum(), 1)
        return jnp.broadcast_to(self.scale * mean, query.shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words(Text):
    """IMDb's reviews, word by word. Text's options but `tokenizer`, `num_bytes`."""

    name: ClassVar[str] = "words"
    data_version: ClassVar[str] = "1.0.0"  # raise it whenever the tokens change
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


class Brier:
    """The squared error of the probabilities: the gradient is that of `loss`."""

    metrics = ("loss", "accuracy")  # the keys of what it returns
    select, higher_is_better = "loss", False  # selects the best weights

    def __init__(self, power: int = 2):
        self.power = power

    def __call__(self, model, batch, key):
        """Each metric as a sum and its weight; key is None in an evaluation."""
        logits = model(batch.inputs, batch.mask, dropout_rng=key)  # [B, C]
        labels = jax.nn.one_hot(batch.labels, logits.shape[-1])
        errors = (jnp.abs(jax.nn.softmax(logits) - labels) ** self.power).sum(-1)
        correct = logits.argmax(-1) == batch.labels
        total = batch.weights.sum()  # filler rows of a last batch weigh 0
        return {
            "loss": ((errors * batch.weights).sum(), total),
            "accuracy": ((correct * batch.weights).sum(), total),
        }


register_attention("average", Average)
register_task("words", Words)
register_objective(
    "brier", ObjectiveSpec(lambda task, **x: Brier(**x), make_classifier)
)


def get_config(arg: str | None = None) -> ConfigDict:
    """`arg`: an attention, as in examples/custom.py:nystrom."""
    settings = {
        "objective.name": "brier",
        "objective.power": 2,
        "optimizer.learning_rate": 1e-3,
        "optimizer.warmup_steps": 100,
        "train.batch_size": 32,
        "train.num_steps": 2_000,
        "train.eval_every": 500,
        "train.checkpoint_every": 500,
    }
    return make_config(
        arg or "average", task="words", settings=settings, presets={}, load=[__file__]
    )
