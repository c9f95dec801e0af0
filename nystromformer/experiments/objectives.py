"""The table of objectives, each with its model and its floors."""

import dataclasses
from collections.abc import Callable

from flax import nnx

from lra_tasks.task import Task
from nystromformer.config import ConfigError
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.floors import (
    Floors,
    Splits,
    of_labels,
    of_tokens,
    of_tokens_and_order,
)
from nystromformer.heads import (
    FirstTokenClassifier,
    MaskedLanguageModel,
    MaskedOrderModel,
    PairClassifier,
    SequenceClassifier,
)
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification, Objective


@dataclasses.dataclass(frozen=True)
class Learning:
    """An objective with its model and its floors.

    make_objective: from the task and `objective`'s options.
    make_model: from the encoder's config, the task, the pooling and rngs.
    floors: from the task and its splits: metric -> name -> value.
    """

    make_objective: Callable[..., Objective]
    make_model: Callable[[EncoderConfig, Task, str, nnx.Rngs], nnx.Module]
    floors: Callable[[Task, Splits], Floors] = lambda task, splits: {}


def classifier(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """The classifier of one sequence or two, as the task has them."""
    num_classes = task.num_classes
    if pooling == "bert_pooler" and task.vocabulary is None:
        raise ValueError(
            f"pooling='bert_pooler' reads [CLS], which {task.name} has not"
        )
    if pooling == "bert_pooler" and task.num_inputs == 1:
        return FirstTokenClassifier(
            config, num_classes=num_classes, activation="tanh", rngs=rngs
        )
    cls = PairClassifier if task.num_inputs == 2 else SequenceClassifier
    return cls(config, num_classes=num_classes, pooling=pooling, rngs=rngs)


def masked_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """A model of masked tokens, with an embedding of the mask token."""
    vocab_size = max(task.vocab_size, task.mask_token + 1)
    config = dataclasses.replace(config, vocab_size=vocab_size)
    return MaskedLanguageModel(config, rngs=rngs)


def hiding(objective: type[MaskedTokens]) -> Callable[..., Objective]:
    """An objective of masked tokens, with the special tokens of the task."""
    return lambda task, **options: objective(
        vocab_size=task.vocab_size,
        mask_token=task.mask_token,
        special_tokens=task.special_tokens,
        **options,
    )


def masked_order_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """A model of masked tokens and of the order of two parts."""
    if task.separator is None:
        raise ValueError(f"mlm_sop needs pairs of text; {task.name} has none")
    return MaskedOrderModel(config, rngs=rngs)


OBJECTIVES = {
    "classification": Learning(
        lambda task, **options: Classification(**options), classifier, of_labels
    ),
    "mlm": Learning(hiding(MaskedTokens), masked_model, of_tokens),
    "mlm_sop": Learning(hiding(MaskedOrder), masked_order_model, of_tokens_and_order),
}


RATES = {"accuracy", "f1", "precision", "recall"}  # the last words of their names


def is_rate(metric: str) -> bool:
    """Whether a metric is a share, to be shown in percent, as mlm_accuracy is."""
    return metric.rpartition("_")[2] in RATES


def shown(metric: str, value: float) -> str:
    """The value of a metric as text."""
    return f"{value:.2%}" if is_rate(metric) else f"{value:.4f}"


def register_objective(name: str, learning: Learning) -> None:
    """Adds an objective of another package to the table.

    Raises:
      ValueError: the name is taken.
    """
    known = OBJECTIVES.get(name, learning).make_model
    if known.__qualname__ != learning.make_model.__qualname__:
        raise ValueError(f"the name {name!r} is taken by {OBJECTIVES[name]}")
    OBJECTIVES[name] = learning


def find_objective(name: str) -> Learning:
    """The objective of that name, or a ConfigError that lists the known ones."""
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise ConfigError(f"unknown config.objective.name {name!r}; known: {known}")
    return OBJECTIVES[name]
