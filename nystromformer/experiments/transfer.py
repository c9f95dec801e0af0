"""Starting from another run: which of its settings and weights are taken."""

import math
from collections.abc import Callable, Mapping, Set
from typing import Any

import jax
import numpy as np
from etils import epath

from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary, open_vocabulary
from lra_tasks.task import Task
from nystromformer.config import Config, ModelConfig, key_types
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.objectives import CLS_POOLERS
from nystromformer.experiments.trained_run import TrainedRun, load_run
from nystromformer.experiments.workdir import complete_settings, read_config
from nystromformer.run_files import CONFIG_FILE, has_imported_weights, read_result
from nystromformer.training.step import Weights, leaves_by_name

# The names of arrays whose number of rows may differ.
EMBEDDING = "params.encoder.embedding.embedding"
POSITIONS = "params.encoder.positions"
KERNEL_SIZE = "attention.conv_kernel_size"
# What a run may choose for itself. All other keys of its encoder are the source's.
OWN_MODEL_KEYS = {"dtype", "remat", "dropout_rate", "ignore_id", "pooling"}


def follow_source(config: Config, workdir: epath.Path | None = None) -> Config:
    """Returns a config with what the weights of `train.init_from` demand.

    They demand the encoder's sizes, which pooler reads [CLS], the kernel size of the
    same attention's convolution and, in a task of texts, the tokenizer and no more
    tokens than the source has positions. What the command line sets stays: if it
    contradicts the source, `carry_over` says so. Without `init_from` nothing changes.

    A run that has begun needs its source no more: it takes all this from its own
    config.

    Args:
      config: the config of a run.
      workdir: the folder of the run, which need not exist; None if it has none.

    Raises:
      ConfigError: if the source is no run.
    """
    if not config.train.init_from:
        return config
    folder = epath.Path(config.train.init_from).expanduser()
    has_begun = False
    if workdir is not None and (workdir / CONFIG_FILE).exists():
        folder = workdir
        has_begun = True
    source = read_config(folder)
    own_settings = complete_settings(config)
    source_settings = complete_settings(source)
    taken_keys = {
        f"model.{key}" for key in key_types(ModelConfig).keys() - OWN_MODEL_KEYS
    }
    if {config.model.pooling, source.model.pooling} <= CLS_POOLERS.keys():
        taken_keys.add("model.pooling")
    has_same_attention = config.attention.name == source.attention.name
    if has_same_attention and KERNEL_SIZE in own_settings:
        taken_keys.add(KERNEL_SIZE)
    settings = {key: source_settings[key] for key in taken_keys}
    if "task.tokenizer" in own_settings:
        settings |= _text_settings(own_settings, source_settings, folder, has_begun)

    groups = config.to_mapping()
    taken = []
    for key, value in sorted(settings.items()):
        group, name = key.split(".")
        if key not in config.overrides and own_settings[key] != value:
            groups[group][name] = value
            taken.append(f"{key}={value}")
    if taken and not has_begun:
        print(f"init_from: as its source has it: {', '.join(taken)}")
    return Config.from_mapping(groups)


def _text_settings(
    own_settings: Mapping[str, Any],
    source_settings: Mapping[str, Any],
    folder: epath.Path,
    has_begun: bool,
) -> dict[str, Any]:
    """The tokenizer and the length of a task of texts, as `follow_source` says."""
    settings = {}
    tokenizer_file = folder / TOKENIZER_FILE
    if tokenizer_file.exists():
        settings["task.tokenizer"] = str(tokenizer_file)
    elif "task.tokenizer" in source_settings:
        settings["task.tokenizer"] = source_settings["task.tokenizer"]
    if source_settings["model.positions"] == "learned":
        longest = source_settings["task.max_length"]
        if not has_begun:
            longest *= own_settings["train.position_repeats"]
        settings["task.max_length"] = min(own_settings["task.max_length"], longest)
    return settings


def check_source(workdir: str) -> None:
    """Checks that the run that `train.init_from` names can be started from.

    Raises:
      ConfigError: if it is not a run, or still trains.
    """
    folder = epath.Path(workdir).expanduser()
    read_config(folder)
    if read_result(folder) is None and not has_imported_weights(folder):
        raise ConfigError(f"init_from: {folder} is not finished: train it to its end")


class Source:
    """The run that another one starts from.

    run: the run with its best weights.
    """

    def __init__(self, workdir: str):
        """Loads the run that `train.init_from` names.

        Raises:
          ConfigError: if it is not a run, or still trains.
          CheckpointError: if its weights are damaged.
        """
        check_source(workdir)
        self.run = load_run(workdir)

    def init_weights(
        self, experiment: Experiment
    ) -> Callable[[Weights], Weights] | None:
        """Returns the function that puts its weights in place of fresh ones.

        None if nothing is carried over.

        Raises:
          ConfigError: as in `carry_over`.
        """
        carried = carry_over(self.run, experiment)
        if not carried:
            return None
        return lambda fresh: replace_weights(fresh, carried)


def carry_over(source: TrainedRun, experiment: Experiment) -> dict[str, np.ndarray]:
    """Chooses the weights of another run that an experiment begins with.

    All arrays of equal name and shape are carried over. Heads may be new or dropped,
    and so may parameters of the attention, if it differs. More positions repeat the
    source's, as often as `train.position_repeats` allows; fewer are its first ones.
    Rows of the source's embedding beyond the experiment's vocabulary, such as the mask
    token's, are dropped. Prints what is carried over, new and dropped.

    Returns:
      The weights by name.

    Raises:
      ConfigError: if tokens, or the encoder's width, depth or vocabulary differ, or the
        sequences are too long for the source's positions.
    """
    _check_same_meaning(source, experiment)
    source_arrays = leaves_by_name(source.weights)
    target_arrays = leaves_by_name(experiment.weight_shapes)
    if POSITIONS in source_arrays:
        _check_length(len(source_arrays[POSITIONS]), experiment)
    layers_of_same_attention = _layers_of_same_attention(
        source.config, experiment.config
    )

    carried: dict[str, np.ndarray] = {}
    for name in target_arrays | source_arrays:
        source_shape = _shape(source_arrays, name)
        target_shape = _shape(target_arrays, name)
        is_in_both = name in source_arrays and name in target_arrays
        if is_in_both and source_shape == target_shape:
            carried[name] = source_arrays[name]
        elif is_in_both and _may_resize(name, source_shape, target_shape):
            carried[name] = np.resize(source_arrays[name], target_shape)  # whole rows
            print(
                f"init_from: {name}: {source_shape[0]} rows repeated or cut to "
                f"{target_shape[0]}"
            )
        elif _must_match(name, layers_of_same_attention):
            raise ConfigError(
                f"config.train.init_from: {name} is {target_shape or 'missing'} "
                f"here and {source_shape or 'missing'} there: take the source's width, "
                "depth, vocabulary, attention, short_conv, pooling"
            )

    new = ", ".join(sorted(target_arrays.keys() - carried.keys())) or "none"
    dropped = ", ".join(sorted(source_arrays.keys() - carried.keys())) or "none"
    print(
        f"init_from: {len(carried)} arrays carried over; new: {new}; dropped: {dropped}"
    )
    return carried


def replace_weights(fresh: Weights, carried: dict[str, np.ndarray]) -> Weights:
    """Returns fresh weights with those that are carried over in their places."""
    leaves = [carried.get(name, leaf) for name, leaf in leaves_by_name(fresh).items()]
    return jax.tree.unflatten(jax.tree.structure(fresh), leaves)


def _check_same_meaning(source: TrainedRun, experiment: Experiment) -> None:
    """Raises ConfigError where weights of equal shapes have different meanings."""
    folder = epath.Path(str(experiment.config.train.init_from))
    tokenizer_file = folder.expanduser() / TOKENIZER_FILE
    source_vocabulary = None
    if tokenizer_file.exists():
        source_vocabulary = open_vocabulary(str(tokenizer_file))
    source_model = source.config.model
    model = experiment.config.model
    properties = {
        "vocabulary": (
            _vocabulary_text(source.task, source_vocabulary),
            _vocabulary_text(experiment.task),
        ),
        "num_heads": (source_model.num_heads, model.num_heads),
        "positions": (source_model.positions, model.positions),
        "gelu": (source_model.gelu, model.gelu),
        "norm_epsilon": (source_model.norm_epsilon, model.norm_epsilon),
    }
    for name, (source_value, value) in properties.items():
        if source_value != value:
            raise ConfigError(
                f"config.train.init_from={folder} has {name} {source_value}, and this "
                f"run {value}: take the same"
            )


def _check_length(num_positions: int, experiment: Experiment) -> None:
    """Raises ConfigError if sequences are longer than the user has allowed."""
    train = experiment.config.train
    max_length = experiment.task.max_length
    if max_length > train.position_repeats * num_positions:
        repeats = math.ceil(max_length / num_positions)
        raise ConfigError(
            f"config.train.init_from={train.init_from} has {num_positions:,} positions,"
            f" and task.max_length is {max_length:,}: take --config.task.max_length="
            f"{num_positions}, or repeat its positions, which then have to be trained "
            f"on, by --config.train.position_repeats={repeats}"
        )


def _vocabulary_text(task: Task, vocabulary: Vocabulary | None = None) -> str:
    """The size of a task's vocabulary and, if it is of sub-words, its digest."""
    vocabulary = vocabulary or task.vocabulary
    if vocabulary is None:
        return f"{task.vocab_size:,}"
    return f"{task.vocab_size:,} of {vocabulary.digest}"


def _shape(arrays: dict[str, Any], name: str) -> list[int]:
    """The shape of an array; empty if it is missing."""
    return list(arrays[name].shape) if name in arrays else []


def _may_resize(name: str, source_shape: list[int], target_shape: list[int]) -> bool:
    """Whether an array may have more or fewer rows than the source's."""
    if source_shape[1:] != target_shape[1:]:
        return False
    if name == POSITIONS:
        return True
    return name == EMBEDDING and source_shape[0] > target_shape[0]


def _must_match(name: str, layers_of_same_attention: Set[int]) -> bool:
    """Whether an array must be in both models, and have the same shape."""
    if not name.startswith("params.encoder."):
        return False
    # As in params.encoder.blocks.0.attention.attention.conv_kernel.
    is_of_attention = ".attention.attention." in name
    return not is_of_attention or int(name.split(".")[3]) in layers_of_same_attention


def _layers_of_same_attention(source: Config, target: Config) -> set[int]:
    """The numbers of the layers that have an attention of one name in both runs."""
    pairs = zip(source.attentions(), target.attentions(), strict=False)
    return {
        layer
        for layer, (source_attention, attention) in enumerate(pairs)
        if source_attention.name == attention.name
    }
