"""An experiment: the task, model, objective and optimizer that a config names."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from lra_tasks.pathfinder import Pathfinder
from lra_tasks.split import SPLITS
from lra_tasks.task import Split, get_task
from nystromformer.config import Config, TrainConfig
from nystromformer.errors import ConfigError
from nystromformer.experiments.augmentations import make_augmentations
from nystromformer.experiments.objectives import OBJECTIVES
from nystromformer.experiments.provenance import num_cores
from nystromformer.training.augmentation import Augmented
from nystromformer.training.compiled import Programs, jit_programs
from nystromformer.training.objective import Objective
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import split_weights
from nystromformer.validation import check_choice


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
        return jit_programs(
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
