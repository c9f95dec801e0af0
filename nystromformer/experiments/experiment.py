"""An experiment: the task, model, objective and optimizer that a config names."""

import copy
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from lra_tasks.errors import DataError
from lra_tasks.task import Split, Task, get_task
from nystromformer.config import Config, OpenGroup
from nystromformer.encoder_config import EncoderConfig
from nystromformer.errors import ConfigError
from nystromformer.experiments.augmentations import make_augment
from nystromformer.experiments.objectives import OBJECTIVES, ObjectiveSpec
from nystromformer.experiments.provenance import num_cores
from nystromformer.training.masked import MaskedTokens
from nystromformer.training.objective import Objective
from nystromformer.training.optimizer import make_optimizer
from nystromformer.training.step import Programs, split_shapes
from nystromformer.validation import check_choice, check_range


class Experiment:
    """The objects that one config describes.

    config: the config, with what the task has found in its files.
    task: where the data come from.
    spec: the entry of the config's objective in the table.
    objective: what is learnt from a batch.
    augment: draws another form of a batch of training; None if nothing is switched on.
    encoder_config: the config of the model's encoder.
    graphdef: the static part of the model; `nnx.merge(graphdef, *weights)` is a model.
    weight_shapes: the shapes and dtypes of its weights.
    """

    def __init__(self, config: Config):
        """Makes the objects, without data and without a compilation.

        Raises:
          DataError: for an unknown task, or an option that the task does not take.
          ConfigError: for an unknown objective or option of it, an augmentation that
            the task does not have, and a model that cannot be built.
        """
        self.task = get_task(config.task.name, **config.task.options)
        config = _with_found_options(config, self.task)
        self.config = config
        self.spec, self.objective = _make_objective(config.objective, self.task)
        self.augment = make_augment(self.task, config.train)

        try:
            self.encoder_config = _make_encoder_config(config, self.task)
            self.graphdef, self.weight_shapes = split_shapes(self.make_model)
        except ConfigError:
            raise  # Its message says already what is wrong.
        except DataError as error:
            # Of an option that only now is needed; it begins with the option's name.
            message = str(error).removeprefix(f"{self.task.name}: ")
            raise ConfigError(f"config.task.{message}") from error
        except (ValueError, OverflowError) as error:
            raise ConfigError(f"config.model, config.attention: {error}") from error

    def __str__(self) -> str:
        train = self.config.train
        return (
            f"{self.task.name} with {self.config.attention}: "
            f"{self.num_params:,} parameters, "
            f"{train.num_steps:,} steps of {train.batch_size}"
        )

    @property
    def num_params(self) -> int:
        """The number of the model's parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.weight_shapes.params))

    def make_model(self, rngs: nnx.Rngs) -> nnx.Module:
        """Makes a model with fresh parameters."""
        pooling = self.config.model.pooling
        return self.spec.make_model(self.encoder_config, self.task, pooling, rngs)

    def load(self) -> dict[str, Split]:
        """Loads the splits of its task, and prepares them first if need be."""
        task = use_all_cores(self.task)
        data_dir = self.config.task.data_dir
        return {name: task.load(name, data_dir) for name in task.splits}

    def with_num_steps(self, num_examples: int) -> "Experiment":
        """Returns the experiment with `train.num_epochs` turned into steps.

        Args:
          num_examples: the number of training examples.

        Raises:
          ConfigError: for fewer examples than a batch has, and for fewer steps than the
            warm-up has.
        """
        train = self.config.train
        if num_examples < train.batch_size:
            raise ConfigError(
                f"config.train.batch_size={train.batch_size} is over the "
                f"{num_examples} training examples: take a smaller one"
            )
        if train.num_steps or not train.num_epochs:
            return self

        steps_per_epoch = num_examples // train.batch_size
        groups = self.config.to_mapping()
        groups["train"]["num_steps"] = max(1, round(train.num_epochs * steps_per_epoch))
        # The model and the objective do not depend on the number of steps.
        experiment = copy.copy(self)
        experiment.config = Config.from_mapping(groups)
        return experiment

    def make_programs(self, mesh: Mesh | None = None) -> Programs:
        """Returns the functions of its run, not yet compiled.

        Args:
          mesh: the devices that share the work; None is one device.
        """
        train = self.config.train
        return Programs(
            self.make_model,
            self.objective,
            make_optimizer(self.config.optimizer, train.num_steps),
            mesh,
            augment=self.augment,
            grad_accum_steps=train.grad_accum_steps,
            length_buckets=train.length_buckets,
        )

    def fraction_exact(self, split: Split) -> float | None:
        """Returns the share of sequences for which Nyström attention is exact.

        They have no more tokens than there are landmarks, in each layer that has any.
        Tokens of the id `model.ignore_id` do not count.

        Args:
          split: the examples.

        Returns:
          The share; None if no layer has landmarks, as with softmax attention.
        """
        layers = [options for _, options in self.config.attentions()]
        layers = [options for options in layers if "num_landmarks" in options]
        if not layers:
            return None

        lengths = split.lengths
        ignore_id = self.config.model.ignore_id
        if ignore_id is not None:
            # One row at a time: a copy of all may be too large.
            rows = zip(split.inputs, lengths, strict=True)
            lengths = np.array([np.sum(row[:n] != ignore_id) for row, n in rows])

        shares = []
        for options in layers:
            if options.get("landmark_padding") == "count":
                has_landmark_for_each = self.task.max_length <= options["num_landmarks"]
                shares.append(float(has_landmark_for_each))
            else:
                shares.append(float((lengths <= options["num_landmarks"]).mean()))
        return min(shares)


def build_experiment(config: Config) -> Experiment:
    """Builds the experiment of a config, after all checks.

    These are the checks that need neither data nor a compilation. A run makes them
    before it begins, a sweep before its first run begins.

    Raises:
      ConfigError, DataError: as in `Experiment`.
      ConfigError: if both steps and epochs say how long it trains, or tokens that are
        to be predicted would be padding.
    """
    train = config.train
    # The config that a run has saved may have both: it knows the steps of its epochs.
    if train.num_steps and train.num_epochs:
        raise ConfigError("give config.train.num_steps or num_epochs, 0 for the other")
    experiment = Experiment(config)
    _check_masked_tokens(experiment.objective, config)
    return experiment


def _check_masked_tokens(objective: Objective, config: Config) -> None:
    """Raises ConfigError if a token that may be masked is padding to the encoder."""
    ignore_id = config.model.ignore_id
    if not isinstance(objective, MaskedTokens) or ignore_id is None:
        return
    if ignore_id not in objective.special_tokens:
        raise ConfigError(
            f"config.objective.name={config.objective.name} masks and predicts tokens, "
            f"and config.model.ignore_id={ignore_id} takes those of one id for padding:"
            " pass --config.model.ignore_id=None, which the preset all_pixels of "
            "pictures has"
        )


def use_all_cores(task: Task) -> Task:
    """Returns the task; on all cores if its option `num_workers` is None."""
    if task.num_workers is None:
        return dataclasses.replace(task, num_workers=num_cores())
    return task


def _with_found_options(config: Config, task: Task) -> Config:
    """The config with the options that the task has found in its source files."""
    found_options = {name: getattr(task, name) for name in task.found_options}
    options = {**config.task.options, **found_options}
    return dataclasses.replace(
        config, task=dataclasses.replace(config.task, options=options)
    )


def _make_objective(group: OpenGroup, task: Task) -> tuple[ObjectiveSpec, Objective]:
    """The objective of a config, and its entry in the table."""
    options = {key: value for key, value in group.options.items() if value is not None}
    try:
        check_choice("name", group.name, tuple(OBJECTIVES))
        spec = OBJECTIVES[group.name]
        objective = spec.make_objective(task, **options)
        check_choice("select", objective.select, tuple(objective.metrics))
    except TypeError as error:
        if "argument" not in str(error):
            raise  # a bug in the objective
        raise ConfigError(f"config.objective: {group.name}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"config.objective: {error}") from error
    return spec, objective


def _make_encoder_config(config: Config, task: Task) -> EncoderConfig:
    """Makes the config of the encoder.

    Args:
      config: its groups `model` and `attention` say what a user chooses.
      task: its tokens and lengths are the inputs.

    Raises:
      ValueError: if `ignore_id` is no token of the task.
    """
    settings = dataclasses.asdict(config.model)
    del settings["pooling"]  # It belongs to the classifier.
    settings["dtype"] = jnp.dtype(config.model.dtype)
    if config.model.ignore_id is not None:
        check_range("ignore_id", config.model.ignore_id, 0, task.vocab_size - 1)
    return EncoderConfig(
        vocab_size=task.vocab_size,
        max_length=task.max_length,
        separator=task.separator,
        attention=config.attention.name,
        attention_options=config.attention.options,
        attention_by_layer=config.attention.layer_settings(),
        **settings,
    )
