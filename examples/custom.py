r"""An attention, a task and an objective of your own, in one file that is their config.

    python scripts/train.py --config=examples/custom.py --workdir=runs/custom

The attention averages the values of all valid tokens. The task is IMDb in whole words,
by a tokenizer of your own: replace `token_id` by any function from a word to an id. The
objective is the Brier score. --config.attention.scale=2.0 changes an option.

With --load=examples/custom.py every command knows them, beside any config:

    python scripts/sweep.py --load=examples/custom.py --workdir=runs/comparison \
        --config=configs/listops.py:quick --grid=attention.name=average,nystrom,softmax

Letters: B batch, T query length, S key length, H head dim, E value dim,
C classes.
"""

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs.defaults import make_config
from lra_tasks.split import pad
from lra_tasks.task import Task, register_task
from lra_tasks.text import Text
from nystromformer import register_attention
from nystromformer.attention.base import Attention
from nystromformer.attention.options import CommonArguments
from nystromformer.experiments.objectives import (
    ObjectiveSpec,
    make_classifier,
    register_objective,
)
from nystromformer.precision import at_least_float32
from nystromformer.training.data import Batch
from nystromformer.training.objective import Sums


class Average(Attention):
    """Every token gets the mean of the valid values, times a number."""

    # It uses the values alone, so a model makes no projections for queries and keys.
    num_projections = 1

    def __init__(self, *, scale: float = 1.0, **common: Unpack[CommonArguments]):
        # `scale` is an option, --config.attention.scale. The others are the arguments
        # that every attention has.
        super().__init__(**common)
        self.scale = scale

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        """Attends with one head of one sequence.

        Args:
          query: [T, H].
          key: [S, H].
          value: [S, E], zero where the mask is False.
          mask: [S] bool, True = a valid token; None = all are.
          precision: that of large products, of which there are none here.

        Returns:
          [T, E]; the base class casts it to the dtype of the query.
        """
        dtype = at_least_float32(value.dtype)  # float16 would overflow in the sum.
        total = value.sum(0, dtype=dtype)
        num_valid = len(key) if mask is None else jnp.maximum(mask.sum(dtype=dtype), 1)
        mean = self.scale * total / num_valid
        return jnp.broadcast_to(mean, (len(query), len(mean)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Words(Text):
    """IMDb's reviews, word by word: the first `max_length` words of each."""

    name: ClassVar[str] = "words"
    data_version: ClassVar[str] = "1.0.0"  # Raise it whenever the tokens change.
    vocab_size: ClassVar[int] = 2**13
    max_length: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.num_bytes is None and self.tokenizer is None,
            "num_bytes and tokenizer are for Text: leave them out",
        )

    def token_id(self, word: str) -> int:
        """The id of a word, from 1 to vocab_size - 1, since 0 is the padding."""
        return 1 + zlib.crc32(word.encode()) % (self.vocab_size - 1)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of n texts, [n, max_length], and their lengths [n]."""
        rows = []
        for text in texts:
            words = re.findall(r"\w+|[^\w\s]", text.lower())
            ids = [self.token_id(word) for word in words[: self.max_length]]
            rows.append(ids)
        return pad(rows, self.max_length, np.uint16)

    def decode(self, tokens: np.ndarray) -> str:
        """A row of ids as text: the numbers, as a hash does not give its word back."""
        return " ".join(str(token) for token in tokens)


class Brier:
    """The squared error of the probabilities, which training makes small.

    Training follows the gradient of the metric "loss", and keeps the weights that are
    best by the metric `select`.
    """

    metrics = ("loss", "accuracy")
    select = "loss"
    higher_is_better = False

    def __init__(self, power: int = 2):
        # An option: --config.objective.power.
        self.power = power

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """Each metric as a sum over the examples of a batch, and its weight.

        Args:
          model: what `make_classifier` made; it gives logits [B, C].
          batch: inputs, mask, labels [B] and weights [B]. A row that only fills the
            last batch of an epoch has weight 0.
          key: for dropout; None in an evaluation.
        """
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        probabilities = jax.nn.softmax(logits)
        targets = jax.nn.one_hot(batch.labels, logits.shape[-1])
        errors = jnp.abs(probabilities - targets) ** self.power
        is_correct = logits.argmax(-1) == batch.labels

        total_weight = batch.weights.sum()
        loss_sum = (errors.sum(-1) * batch.weights).sum()
        accuracy_sum = (is_correct * batch.weights).sum()
        return {
            "loss": (loss_sum, total_weight),
            "accuracy": (accuracy_sum, total_weight),
        }


def make_brier(task: Task, **options: Any) -> Brier:
    """Makes the objective for a task, from the options of the config."""
    return Brier(**options)


register_attention("average", Average)
register_task("words", Words)
register_objective("brier", ObjectiveSpec(make_brier, make_classifier))


def get_config(arg: str | None = None) -> ConfigDict:
    """The config of a run.

    Args:
      arg: the name of an attention, as in --config=examples/custom.py:nystrom; None
        takes this file's.
    """
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
        arg or "average",
        task="words",
        settings=settings,
        presets={},
    )
