"""An experiment: the task, model, objective and optimizer of a config."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from lra_tasks.split import SPLITS
from lra_tasks.task import Split, Task, get_task
from nystromformer.config import Config, ConfigError
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.objectives import Learning, find_objective
from nystromformer.training.data import Batch
from nystromformer.training.objective import Objective
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Weights, split_weights


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One config's task, model and optimizer."""

    config: Config
    task: Task

    @classmethod
    def from_config(cls, config: Config) -> "Experiment":
        """Builds it, with every check that needs neither data nor compilation.

        Raises:
          DataError: an unknown task or option.
          ConfigError: a model that cannot be built for the task.
        """
        experiment = cls(config, get_task(config.task.name, **config.task.options))
        try:
            experiment.weight_shapes  # noqa: B018 - builds the model in the abstract
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"config.model, config.attention: {error}") from error
        return experiment

    def on(self, num_examples: int) -> "Experiment":
        """The same, with the steps that `train.num_epochs` of the examples take.

        Raises:
          ConfigError: too few examples for a batch, or steps for the warm-up.
        """
        train = self.config.train
        if num_examples < train.batch_size:
            raise ConfigError(
                f"config.train.batch_size={train.batch_size} is over the "
                f"{num_examples} training examples"
            )
        if train.num_steps or not train.num_epochs:
            return self
        groups = self.config.to_mapping()
        steps = round(train.num_epochs * (num_examples // train.batch_size))
        groups["train"]["num_steps"] = max(steps, 1)
        return dataclasses.replace(self, config=Config.from_mapping(groups))

    @functools.cached_property
    def learning(self) -> Learning:
        """The config's objective with its model and floors."""
        return find_objective(self.config.objective.name)

    @functools.cached_property
    def objective(self) -> Objective:
        """The objective."""
        try:
            return self.learning.make_objective(
                self.task, **self.config.objective.options
            )
        except (TypeError, ValueError) as error:  # no such option, or no such value
            raise ConfigError(f"config.objective: {error}") from error

    def make_model(self, rngs: nnx.Rngs) -> Any:
        """The model, with fresh parameters."""
        options = dict(self.config.to_mapping()["model"])
        pooling, dtype = options.pop("pooling"), options.pop("dtype")
        config = EncoderConfig(
            vocab_size=self.task.vocab_size,
            max_length=self.task.max_length,
            separator=self.task.separator,
            attention=self.config.attention.name,
            attention_options=self.config.attention.options,
            dtype=jnp.dtype(dtype),
            **options,
        )
        return self.learning.make_model(config, self.task, pooling, rngs)

    def make_optimizer(self) -> optax.GradientTransformation:
        """The optimizer over this run's length."""
        return make_optimizer(self.config.optimizer, self.config.train.num_steps)

    @functools.cached_property
    def weight_shapes(self) -> Weights:
        """Of the model's weights; the objective takes a batch in the abstract."""
        pair = (2,) if self.task.num_inputs == 2 else ()
        inputs = jax.ShapeDtypeStruct((1, *pair, self.task.max_length), jnp.int32)
        one = jnp.zeros(1, jnp.int32)

        def shapes(inputs: jax.Array) -> Weights:
            model = self.make_model(nnx.Rngs(0))
            _, weights = split_weights(model)
            batch = Batch(inputs, inputs > 0, one, jnp.ones(1), one)
            self.objective(model, batch, jax.random.key(0))
            return weights

        return jax.eval_shape(shapes, inputs)

    @property
    def num_params(self) -> int:
        """The number of trained parameters."""
        return sum(x.size for x in jax.tree.leaves(self.weight_shapes.params))

    def fraction_exact(self, lengths: np.ndarray) -> float:
        """The share of sequences whose landmarks are all of their tokens."""
        options = self.config.attention.options
        if options.get("landmark_padding") == "count":
            lengths = np.full_like(lengths, self.task.max_length)
        return float((lengths <= options.get("num_landmarks", 0)).mean())

    def load(self) -> dict[str, Split]:
        """All splits, prepared first where they are not yet."""
        data_dir = self.config.task.data_dir
        return {name: self.task.load(name, data_dir) for name in SPLITS}
