"""An experiment: the task, model, objective and optimizer that a config names."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from lra_tasks.pathfinder import Pathfinder
from lra_tasks.split import SPLITS
from lra_tasks.task import Split, Task, get_task
from nystromformer import heads
from nystromformer.attention.base import check_choice
from nystromformer.config import Config, ConfigError, ModelConfig, TrainConfig
from nystromformer.experiments.augmentations import make_augmentations
from nystromformer.experiments.floors import (
    Floors,
    denoising_floors,
    label_floors,
    mlm_floors,
    mlm_sop_floors,
    position_floors,
)
from nystromformer.experiments.provenance import num_cores
from nystromformer.training.augmentation import Augmented
from nystromformer.training.denoising import ClassificationDenoising
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.objective import Classification, Objective
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.positions import Positions
from nystromformer.training.step import Programs, split_weights

RATES = {"accuracy", "f1", "precision", "recall"}  # the last words of their names


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
    "classification_denoising": ObjectiveSpec(
        partial(_make_mlm, ClassificationDenoising),
        make_denoising_classifier,
        denoising_floors,
    ),
    "positions": ObjectiveSpec(_make_positions, make_token_classifier, position_floors),
    "mlm": ObjectiveSpec(partial(_make_mlm, MaskedTokens), make_mlm_model, mlm_floors),
    "mlm_sop": ObjectiveSpec(
        partial(_make_mlm, MaskedOrder), make_mlm_sop_model, mlm_sop_floors
    ),
}


def register_objective(name: str, spec: ObjectiveSpec) -> None:
    """Adds an objective of another package to the table, or replaces one."""
    OBJECTIVES[name] = spec


class Experiment:
    """The objects that one config describes.

    make_model: called with rngs, returns a model with fresh parameters.
    graphdef: the static part of the model; `nnx.merge(graphdef, *weights)` is a model.
    weight_shapes: the shapes and dtypes of its weights.
    """

    def __init__(self, config: Config):
        """Runs every check that needs neither data nor a compilation.

        DataError for an unknown task or option of it; ConfigError for an objective or
        option that is unknown, an augmentation that the task does not have, or a model
        that cannot be built.
        """
        self.config = config
        self.task = task = get_task(config.task.name, **config.task.options)
        name, options = config.objective.name, config.objective.options
        options = {key: x for key, x in options.items() if x is not None}
        try:
            check_choice("name", name, tuple(OBJECTIVES))
            self.spec = OBJECTIVES[name]
            objective: Objective = self.spec.make_objective(task, **options)
            check_choice("select", objective.select, tuple(objective.metrics))
            self.objective = objective
        except (TypeError, ValueError) as error:  # no such option, or no such value
            raise ConfigError(f"config.objective: {error}") from error
        augmentations = make_augmentations(task, config.train)
        if augmentations:
            self.objective = Augmented(objective, augmentations)
        try:
            encoder = dataclasses.replace(
                config.model,
                vocab_size=task.vocab_size,
                max_length=task.max_length,
                separator=task.separator,
                attention=config.attention.name,
                attention_options=config.attention.options,
                dtype=jnp.dtype(config.model.dtype),
            )
            self.make_model: Any = partial(self.spec.make_model, encoder, task)
            model = nnx.eval_shape(lambda: self.make_model(nnx.Rngs(0)))
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"config.model, config.attention: {error}") from error
        self.graphdef, self.weight_shapes = split_weights(model)

    def with_num_steps(self, num_examples: int) -> "Experiment":
        """The experiment with `train.num_epochs` turned into steps.

        ConfigError for too few examples for a batch, or steps for the warm-up.
        """
        train = self.config.train
        if num_examples < (size := train.batch_size):
            over = f"is over the {num_examples} training examples"
            raise ConfigError(f"config.train.batch_size={size} {over}")
        if train.num_steps or not train.num_epochs:
            return self
        groups = self.config.to_mapping()
        steps = round(train.num_epochs * (num_examples // size))
        groups["train"]["num_steps"] = max(steps, 1)
        found = Experiment(Config.from_mapping(groups))
        found.task = self.task  # which may have learnt its vocabulary
        return found

    def make_programs(self, mesh: Mesh | None = None) -> Programs:
        """The functions of its run on a mesh (None: one device), not yet compiled."""
        train = self.config.train
        return Programs(
            self.make_model,
            self.objective,
            make_optimizer(self.config.optimizer, train.num_steps),
            mesh,
            grad_accum_steps=train.grad_accum_steps,
            length_buckets=train.length_buckets,
        )

    def __str__(self) -> str:
        name, train = self.config.attention.name, self.config.train
        steps = f"{train.num_steps:,} steps of {train.batch_size}"
        return f"{self.task.name} with {name}: {self.num_params:,} parameters, {steps}"

    @property
    def num_params(self) -> int:
        return sum(x.size for x in jax.tree.leaves(self.weight_shapes.params))

    def fraction_exact(self, lengths: np.ndarray) -> float:
        """The fraction of sequences with no more tokens than landmarks."""
        options = self.config.attention.options
        if options.get("landmark_padding") == "count":
            lengths = np.full_like(lengths, self.task.max_length)
        return float((lengths <= options.get("num_landmarks", 0)).mean())

    def load(self) -> dict[str, Split]:
        """Its splits, which are prepared first, pictures on all cores."""
        task = self.task
        if isinstance(task, Pathfinder) and task.num_workers is None:
            task = dataclasses.replace(task, num_workers=num_cores())
        data_dir = self.config.task.data_dir
        return {name: task.load(name, data_dir) for name in SPLITS}


def check_num_steps(train: TrainConfig) -> None:
    """Raises ConfigError unless steps or epochs say how long a run trains, not both."""
    if train.num_steps and train.num_epochs:
        raise ConfigError("give config.train.num_steps or num_epochs, 0 for the other")


def is_rate(metric: str) -> bool:
    """Whether a metric is shown in percent, as mlm_accuracy is."""
    return metric.rpartition("_")[2] in RATES


def format_metric(metric: str, value: float) -> str:
    return f"{value:.2%}" if is_rate(metric) else f"{value:.4f}"
