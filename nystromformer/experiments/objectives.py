"""The table of objectives: what each learns, the model that it trains, its floors.

Floors are the scores that rules without a model reach on the test split. A function
named NAME_floors takes a task and its splits, and returns for a metric of the objective
the score of each rule. The rules are fitted on train.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax import nnx

from lra_tasks.task import Task
from nystromformer import classifiers, token_models
from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import ConfigError
from nystromformer.training.masked import (
    ClassificationDenoising,
    MaskedOrder,
    MaskedTokens,
)
from nystromformer.training.objective import (
    Classification,
    Objective,
    Positions,
    Sums,
)

# The poolings of [CLS] by a linear layer: the activation behind it.
CLS_POOLERS = {"bert_pooler": "tanh", "gelu_pooler": "gelu"}

# Of a split with more tokens than this, evenly spaced rows are counted.
MAX_COUNTED_TOKENS = 2**23

Floors = dict[str, dict[str, float]]  # metric -> rule -> its score on test


def no_floors(task: Task, splits: Any) -> Floors:
    """An objective without rules."""
    return {}


@dataclasses.dataclass(frozen=True)
class ObjectiveSpec:
    """An objective with the model that it trains and its trivial baselines.

    make_objective: called with the task and, by name, the options of the config.
    make_model: called with the encoder's config, the task, the name of a pooling, which
      says how a model of whole sequences reads the encoder's output, and rngs.
    floors: called with the task and its splits; its rules are fitted on train.
    """

    make_objective: Callable[..., Objective]
    make_model: Callable[[EncoderConfig, Task, str, nnx.Rngs], nnx.Module]
    floors: Callable[..., Floors] = no_floors


def make_classifier(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes a classifier of one sequence or of a pair, whichever the task has.

    Raises:
      ConfigError: if the task labels tokens.
      ValueError: if the pooling needs a [CLS] that the task's inputs do not have.
    """
    _check_one_label(task)
    if pooling in CLS_POOLERS and task.vocabulary is None:
        raise ValueError(
            f"pooling={pooling!r} reads [CLS], which {task.name} does not have: "
            "take pooling='mean'"
        )
    if task.num_inputs == 2:
        return classifiers.PairClassifier(
            config, num_classes=task.num_classes, pooling=pooling, rngs=rngs
        )
    if pooling in CLS_POOLERS:
        return classifiers.FirstTokenClassifier(
            config,
            num_classes=task.num_classes,
            activation=CLS_POOLERS[pooling],
            rngs=rngs,
        )
    return classifiers.SequenceClassifier(
        config, num_classes=task.num_classes, pooling=pooling, rngs=rngs
    )


def make_token_classifier(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes a classifier of each token."""
    return classifiers.TokenClassifier(config, num_classes=task.num_classes, rngs=rngs)


def make_mlm_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes a masked language model, with an embedding of the mask token."""
    return token_models.MaskedLanguageModel(_with_mask_token(config, task), rngs=rngs)


def make_denoising_classifier(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes a classifier of a sequence or a pair that also predicts masked tokens.

    Raises:
      ConfigError: if the task labels tokens.
      ValueError: if the pooling is one of CLS_POOLERS.
    """
    _check_one_label(task)
    if pooling in CLS_POOLERS:
        raise ValueError(
            f"pooling={pooling!r} has no model of masked tokens: take another pooling"
        )
    is_pair = task.num_inputs == 2
    cls = (
        token_models.DenoisingPairClassifier
        if is_pair
        else token_models.DenoisingClassifier
    )
    return cls(
        _with_mask_token(config, task),
        num_classes=task.num_classes,
        pooling=pooling,
        rngs=rngs,
    )


def make_mlm_sop_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes a model of masked tokens and of the order of two segments.

    Raises:
      ConfigError: if the task's labels say something else than this order.
    """
    if not task.label_is_order:
        raise ConfigError(
            'objective.name="mlm_sop" needs pairs of text whose label is their order; '
            f'{task.name} has none: take the task corpus, or objective.name="mlm"'
        )
    return token_models.MaskedOrderModel(config, rngs=rngs)


def make_encoder_model(
    config: EncoderConfig, task: Task, pooling: str, rngs: nnx.Rngs
) -> nnx.Module:
    """Makes an encoder without a head."""
    return token_models.EncoderModel(Encoder(config, rngs=rngs))


class NoObjective:
    """The objective of an encoder that was imported without a head: it has none."""

    metrics = ("loss",)
    select = "loss"
    higher_is_better = False

    def __call__(self, model: Any, batch: Any, key: Any) -> Sums:
        """Raises ConfigError: nothing can be measured or learnt."""
        raise ConfigError(
            "this run is an encoder without a head, which predicts nothing: start a "
            "run from it by --config.train.init_from"
        )


def _check_one_label(task: Task) -> None:
    """Raises ConfigError for a task that labels tokens, not sequences."""
    if task.num_labels:
        raise ConfigError(
            f"{task.name} labels several tokens of a sequence, and a classifier has "
            'one label for each sequence: take objective.name="positions"'
        )


def _with_mask_token(config: EncoderConfig, task: Task) -> EncoderConfig:
    """The config with a vocabulary that has the mask token."""
    vocab_size = max(task.vocab_size, task.mask_token + 1)
    return dataclasses.replace(config, vocab_size=vocab_size)


def _make_no_objective(task: Task) -> NoObjective:
    return NoObjective()


def _make_classification(task: Task, **options: Any) -> Classification:
    return Classification(**options)


def _make_positions(task: Task, **options: Any) -> Positions:
    """An objective of the tokens that the task labels."""
    if not task.num_labels:
        raise ValueError(
            f"positions needs labels of tokens; {task.name} has one of each sequence: "
            'take name="classification"'
        )
    return Positions(task.num_labels, **options)


def _make_mlm(task: Task, **options: Any) -> MaskedTokens:
    return _make_masked(MaskedTokens, task, options)


def _make_mlm_sop(task: Task, **options: Any) -> MaskedTokens:
    return _make_masked(MaskedOrder, task, options)


def _make_denoising(task: Task, **options: Any) -> MaskedTokens:
    return _make_masked(ClassificationDenoising, task, options)


def _make_masked(
    cls: type[MaskedTokens], task: Task, options: Mapping[str, Any]
) -> MaskedTokens:
    """An objective of masked tokens, which leaves the task's special ones alone."""
    return cls(
        vocab_size=task.vocab_size,
        mask_token=task.mask_token,
        special_tokens=task.special_tokens,
        **options,
    )


def label_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules and, for f1, the rule that always answers 1."""
    share_of_class_1 = float(np.mean(np.asarray(splits["test"].labels) == 1))
    return {
        "accuracy": task.floors(splits["train"], splits["test"]),
        "f1": {"class 1 always": 2 * share_of_class_1 / (1 + share_of_class_1)},
    }


def position_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules for the labels of tokens."""
    return {"accuracy": task.floors(splits["train"], splits["test"])}


def mlm_floors(task: Task, splits: Any) -> Floors:
    """A unigram model of the ordinary tokens, with add-one smoothing.

    Its loss is the cross-entropy of the test tokens, in nats; its answer is the token
    that train has most often.
    """
    train_counts = _token_counts(splits["train"], task)
    test_counts = _token_counts(splits["test"], task)
    losses = -np.log((train_counts + 1) / (train_counts + 1).sum())
    test_shares = test_counts / test_counts.sum()
    return {
        "loss": {"frequency of each token": float(test_shares @ losses)},
        "mlm_accuracy": {
            "frequency of each token": float(test_shares[train_counts.argmax()])
        },
    }


def denoising_floors(task: Task, splits: Any) -> Floors:
    """The rules for the label, and for masked tokens the most frequent token."""
    return {
        "accuracy": label_floors(task, splits)["accuracy"],
        "denoising_accuracy": mlm_floors(task, splits)["mlm_accuracy"],
    }


def mlm_sop_floors(task: Task, splits: Any) -> Floors:
    """The rules for tokens; for the order the label that train has more often."""
    token_floors = mlm_floors(task, splits)
    majority = np.mean(splits["train"].labels) > 0.5
    accuracy = float(np.mean(splits["test"].labels == majority))
    return {
        "mlm_loss": token_floors["loss"],
        "mlm_accuracy": token_floors["mlm_accuracy"],
        "sop_accuracy": {"majority class": accuracy},
    }


def _token_counts(split: Any, task: Task) -> np.ndarray:
    """How often each ordinary token, one that is not special, is in a split."""
    stride = max(1, split.inputs.size // MAX_COUNTED_TOKENS)
    inputs = split.inputs[::stride]
    lengths = split.lengths[::stride]
    is_valid = np.arange(inputs.shape[1]) < lengths[:, None]
    counts = np.bincount(inputs[is_valid], minlength=task.vocab_size)
    return np.delete(counts, task.special_tokens)


OBJECTIVES = {
    "classification": ObjectiveSpec(
        make_objective=_make_classification,
        make_model=make_classifier,
        floors=label_floors,
    ),
    "positions": ObjectiveSpec(
        make_objective=_make_positions,
        make_model=make_token_classifier,
        floors=position_floors,
    ),
    "classification_denoising": ObjectiveSpec(
        make_objective=_make_denoising,
        make_model=make_denoising_classifier,
        floors=denoising_floors,
    ),
    "mlm": ObjectiveSpec(
        make_objective=_make_mlm,
        make_model=make_mlm_model,
        floors=mlm_floors,
    ),
    "mlm_sop": ObjectiveSpec(
        make_objective=_make_mlm_sop,
        make_model=make_mlm_sop_model,
        floors=mlm_sop_floors,
    ),
    # Of imported weights: see scripts/import_weights.py.
    "encoder": ObjectiveSpec(
        make_objective=_make_no_objective,
        make_model=make_encoder_model,
    ),
}


def register_objective(name: str, spec: ObjectiveSpec) -> None:
    """Adds an objective of another package to the table, or replaces one."""
    OBJECTIVES[name] = spec
