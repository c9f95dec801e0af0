"""Starting from another run: which of its weights are carried over."""

from collections.abc import Callable, Set
from typing import Any

import jax
import numpy as np
from etils import epath
from flax import nnx

from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary, open_vocabulary
from lra_tasks.task import Task
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_file import read_config, read_result
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.trained_run import TrainedRun, load_run
from nystromformer.run_files import has_imported_weights
from nystromformer.token_models import MaskedLanguageModel
from nystromformer.training.step import Weights, leaves_by_name

# The names of arrays whose number of rows may differ.
EMBEDDING = "params.encoder.embedding.embedding"
POSITIONS = "params.encoder.positions"
# How often a run on labels may repeat the source's positions. The quick presets of
# sub-words read 256 tokens with the positions of 64, and no run here has more.
MOST_REPEATS = 4


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
    source's, in a run on labels up to MOST_REPEATS times; fewer are its first ones.
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
    """Raises ConfigError if a run on labels has too many tokens for its source.

    Masked tokens train all positions, so that such a run may repeat them at will.
    """
    model = nnx.merge(experiment.graphdef, *experiment.weight_shapes)
    longest = MOST_REPEATS * num_positions
    max_length = experiment.task.max_length
    if max_length > longest and not isinstance(model, MaskedLanguageModel):
        raise ConfigError(
            f"config.train.init_from={experiment.config.train.init_from} has "
            f"{num_positions:,} positions, and task.max_length={max_length} would "
            f"repeat them more than {MOST_REPEATS} times: take "
            f"config.task.max_length={num_positions}, at most {longest}, or first go "
            "on with masked tokens of that length (configs/corpus.py)"
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
