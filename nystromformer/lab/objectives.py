"""The objectives by name, each with the model that it asks for and its floors."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax import nnx

from lra_tasks.subwords import token_types
from lra_tasks.task import Task
from nystromformer.config import ConfigError
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import (
    MaskedLanguageModel,
    PairClassifier,
    SequenceClassifier,
)
from nystromformer.training.masked import MaskedTokens
from nystromformer.training.objective import Classification, Objective

Splits = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Learning:
    """What a config's `objective.name` stands for.

    make_objective: from the task and `objective`'s options.
    make_model: from the encoder's config, the task, the pooling and rngs.
    floors: of the selected metric, from the task and its splits: name -> value.
    """

    make_objective: Callable[..., Objective]
    make_model: Callable[[EncoderConfig, Task, str, nnx.Rngs], nnx.Module]
    floors: Callable[[Task, Splits], dict[str, float]] = lambda task, splits: {}


def classifier(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """The classifier of one sequence or two, as the task has them."""
    cls = PairClassifier if task.num_inputs == 2 else SequenceClassifier
    return cls(config, num_classes=task.num_classes, pooling=pooling, rngs=rngs)


def masked_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """A model of hidden tokens, with an embedding of the one that hides them."""
    vocab_size = max(task.vocab_size, task.mask_token + 1)
    config = dataclasses.replace(config, vocab_size=vocab_size)
    return MaskedLanguageModel(config, rngs=rngs)


def masked_tokens(task: Task, **options: Any) -> MaskedTokens:
    """The objective of hidden tokens, with the special ones of the task."""
    types: Any = None
    if task.separator is not None:
        types = functools.partial(token_types, sep=task.separator)
    return MaskedTokens(
        vocab_size=task.vocab_size,
        mask_token=task.mask_token,
        special_tokens=task.special_tokens,
        token_types=types,
        **options,
    )


def unigram_loss(task: Task, splits: Splits) -> dict[str, float]:
    """The loss in nats of a guess by each token's frequency in the training split."""

    def count(split: Any) -> np.ndarray:
        valid = np.arange(split.inputs.shape[1]) < np.asarray(split.lengths)[:, None]
        found = np.bincount(split.inputs[valid], minlength=task.vocab_size)
        found[list(task.special_tokens)] = 0
        return found

    train, test = count(splits["train"]) + 1, count(splits["test"])
    loss = -(test * np.log(train / train.sum())).sum() / max(test.sum(), 1)
    return {"frequency of each token": float(loss)}


OBJECTIVES = {
    "classification": Learning(
        lambda task: Classification(),
        classifier,
        lambda task, splits: task.floors(splits["train"], splits["test"]),
    ),
    "masked": Learning(masked_tokens, masked_model, unigram_loss),
}


RATES = {"accuracy", "f1", "precision", "recall"}  # the last words of their names


def is_rate(metric: str) -> bool:
    """Whether a metric is a share, to be shown in percent, as mlm_accuracy is."""
    return metric.rpartition("_")[2] in RATES


def shown(metric: str, value: float) -> str:
    """The value of a metric, for people."""
    return f"{value:.2%}" if is_rate(metric) else f"{value:.4f}"


def register_objective(name: str, learning: Learning) -> None:
    """Adds an objective of another package to the table.

    Raises:
      ValueError: the name is taken.
    """
    if OBJECTIVES.get(name, learning) is not learning:
        raise ValueError(f"the name {name!r} is taken by {OBJECTIVES[name]}")
    OBJECTIVES[name] = learning


def find_objective(name: str) -> Learning:
    """The objective of that name, or a ConfigError that lists the known ones."""
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"unknown config.objective.name {name!r}; known: {known}")
    return OBJECTIVES[name]
