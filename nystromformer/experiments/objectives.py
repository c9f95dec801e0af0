"""The table of objectives: what each learns, the model that it trains, its floors."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from flax import nnx

from lra_tasks.task import Task
from nystromformer import heads
from nystromformer.config import ModelConfig
from nystromformer.experiments.floors import (
    Floors,
    denoising_floors,
    label_floors,
    mlm_floors,
    mlm_sop_floors,
    position_floors,
)
from nystromformer.training.denoising import ClassificationDenoising
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification, Objective
from nystromformer.training.positions import Positions


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """An objective with the model that it trains and its trivial baselines.

    make_objective: called with the task and, by name, the options of the config.
    make_model: called with the encoder's config, with its pooling, the task and rngs.
    floors: called with the task and its splits; rules are fitted on train.
    """

    make_objective: Callable[..., Objective]
    make_model: Callable[[ModelConfig, Task, nnx.Rngs], nnx.Module]
    floors: Callable[..., Floors] = lambda task, splits: {}


def make_classifier(config: ModelConfig, task: Task, rngs: nnx.Rngs) -> nnx.Module:
    """A classifier of one sequence or of a pair, whichever the task has."""
    _check_one_label(task)
    sizes: Any = {"num_classes": task.num_classes, "rngs": rngs}
    pooling = config.pooling
    if pooling == "bert_pooler" and task.vocabulary is None:
        raise ValueError(f"pooling='bert_pooler' reads [CLS]; {task.name} has none")
    if task.num_inputs == 2:
        return heads.PairClassifier(config, pooling=pooling, **sizes)
    if pooling == "bert_pooler":
        return heads.FirstTokenClassifier(config, activation="tanh", **sizes)
    return heads.SequenceClassifier(config, pooling=pooling, **sizes)


def _check_one_label(task: Task) -> None:
    """Raises ValueError for a task that labels tokens, not sequences."""
    if task.num_labels:
        raise ValueError(
            f"{task.name} labels several tokens of a sequence, a classifier gives it "
            'one label: take objective.name="positions"'
        )


def make_token_classifier(
    config: ModelConfig, task: Task, rngs: nnx.Rngs
) -> nnx.Module:
    """A classifier of each token."""
    return heads.TokenClassifier(config, num_classes=task.num_classes, rngs=rngs)


def make_mlm_model(config: ModelConfig, task: Task, rngs: nnx.Rngs) -> nnx.Module:
    """A masked language model, with an embedding of the mask token."""
    return heads.MaskedLanguageModel(_with_mask_token(config, task), rngs=rngs)


def make_denoising_classifier(
    config: ModelConfig, task: Task, rngs: nnx.Rngs
) -> nnx.Module:
    """A classifier of one sequence or of a pair that can also tell hidden tokens."""
    _check_one_label(task)
    if config.pooling == "bert_pooler":
        raise ValueError(
            "pooling='bert_pooler' has no model of hidden tokens: take another pooling"
        )
    is_pair = task.num_inputs == 2
    kind = heads.DenoisingPairClassifier if is_pair else heads.DenoisingClassifier
    return kind(
        _with_mask_token(config, task),
        num_classes=task.num_classes,
        pooling=config.pooling,
        rngs=rngs,
    )


def _with_mask_token(config: ModelConfig, task: Task) -> ModelConfig:
    """The config with a vocabulary in which the mask token is."""
    vocab_size = max(task.vocab_size, task.mask_token + 1)
    return dataclasses.replace(config, vocab_size=vocab_size)


def make_mlm_sop_model(config: ModelConfig, task: Task, rngs: nnx.Rngs) -> nnx.Module:
    """A model of masked tokens and of the order of two segments."""
    if task.separator is None:
        raise ValueError(f"mlm_sop needs pairs of text; {task.name} has none")
    return heads.MaskedOrderModel(config, rngs=rngs)


def _make_positions(task: Task, **options: Any) -> Positions:
    """An objective of the tokens that the task labels."""
    if not task.num_labels:
        raise ValueError(
            f"positions needs labels of tokens; {task.name} has one of each sequence: "
            'take name="classification"'
        )
    return Positions(task.num_labels, **options)


def _make_mlm(kind: type[MaskedTokens], task: Task, **options: Any) -> MaskedTokens:
    """An objective of masked tokens, which leaves the task's special ones alone."""
    tokens = {"vocab_size": task.vocab_size, "mask_token": task.mask_token}
    return kind(**tokens, special_tokens=task.special_tokens, **options)


OBJECTIVES = {
    "classification": ObjectiveSpec(
        lambda task, **options: Classification(**options), make_classifier, label_floors
    ),
    "positions": ObjectiveSpec(_make_positions, make_token_classifier, position_floors),
    "classification_denoising": ObjectiveSpec(
        partial(_make_mlm, ClassificationDenoising),
        make_denoising_classifier,
        denoising_floors,
    ),
    "mlm": ObjectiveSpec(partial(_make_mlm, MaskedTokens), make_mlm_model, mlm_floors),
    "mlm_sop": ObjectiveSpec(
        partial(_make_mlm, MaskedOrder), make_mlm_sop_model, mlm_sop_floors
    ),
}


def register_objective(name: str, spec: ObjectiveSpec) -> None:
    """Adds an objective of another package to the table, or replaces one."""
    OBJECTIVES[name] = spec
