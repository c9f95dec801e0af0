"""Starting from another run: which of its weights are carried over."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lra_tasks.subwords import open_vocabulary
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.trained_run import TrainedRun, load_run
from nystromformer.experiments.workdir import TOKENIZER_FILE, find_folder
from nystromformer.training.checkpoint import saved_steps
from nystromformer.training.step import Weights, named_leaves

EMBEDDING = "params.encoder.embedding.embedding"
POSITIONS = "params.encoder.positions"
NOTHING = np.empty((0, 0, 0, 0))  # of a shape that no weight has


def find_source(config: Config) -> TrainedRun | None:
    """The run that `train.init_from` names, if any.

    Raises:
      ConfigError: it is no run, or not finished.
    """
    if not config.train.init_from:
        return None
    folder = find_folder(config.train.init_from)
    source = load_run(folder)
    if source.result is None and saved_steps(folder):
        raise ConfigError(
            f"config.train.init_from={folder} is not finished: train it to its end"
        )
    return source


def check_source(source: TrainedRun, experiment: Experiment) -> None:
    """Prints what is carried over to an experiment whose data are loaded.

    Raises:
      ConfigError: other tokens, or an encoder of another width, depth or vocabulary.
    """
    folder = find_folder(str(experiment.config.train.init_from))
    words = folder / TOKENIZER_FILE
    theirs, ours = source.task.vocabulary, experiment.task.vocabulary
    if words.exists():
        theirs = open_vocabulary(str(words))
    if (theirs and theirs.digest) != (ours and ours.digest):
        named = words if words.exists() else theirs and theirs.digest
        raise ConfigError(
            f"config.train.init_from={folder} was trained on other tokens than "
            f"config.task.tokenizer has: take {named or 'a run on the same'}"
        )
    sizes = source.task.vocab_size, experiment.task.vocab_size
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"config.train.init_from={folder} was trained on {sizes[0]:,} tokens, and "
            f"the task has {sizes[1]:,}: take a run on the same"
        )
    heads = [x.config.model.num_heads for x in (source, experiment)]  # in no shape
    if heads[0] != heads[1]:
        raise ConfigError(
            f"config.train.init_from={folder} has model.num_heads={heads[0]}, and this "
            f"run {heads[1]}: take the same"
        )
    carried_over(source, experiment.weight_shapes, experiment, print)


def carried_over(
    source: TrainedRun,
    fresh: Weights,
    experiment: Experiment,
    say: Callable[[str], None] = lambda line: None,
) -> Weights:
    """The fresh weights, or their shapes, with all that fits from the source.

    Whatever fits by name and shape is taken. A head may be new or dropped, and so may
    the parameters of another attention. Positions may be more: the old rows, repeated;
    or fewer: the first. Of the embedding the rows beyond our vocabulary, as of a mask
    token, are dropped.

    Raises:
      ConfigError: an encoder of another width, depth or vocabulary.
    """
    theirs, ours = named_leaves(source.weights), named_leaves(fresh)
    other_attention = source.config.attention.name != experiment.config.attention.name

    def explained(name: str) -> bool:
        own = ".attention.attention." in name and other_attention
        return own or not name.startswith("params.encoder.")

    taken, new = dict(ours), []
    for name, leaf in ours.items():
        found = theirs.get(name, NOTHING)
        if found.shape == leaf.shape:
            taken[name] = found
        elif _fewer_rows(leaf, found) and name in (EMBEDDING, POSITIONS):
            rows = leaf.shape[0]
            taken[name] = found[:rows]
            say(f"init_from: {name}: {len(found) - rows} rows dropped")
        elif _fewer_rows(found, leaf) and name == POSITIONS:
            rows = leaf.shape[0]
            taken[name] = np.tile(found, (-(-rows // len(found)), 1))[:rows]
            say(f"init_from: {name}: {len(found)} rows repeated to {rows}")
        elif explained(name):
            new.append(name)
        else:
            theirs_is = "missing" if found is NOTHING else f"{found.shape} there"
            raise ConfigError(
                f"config.train.init_from: {name} is {leaf.shape} here and {theirs_is}: "
                "take the source's width, depth and vocabulary"
            )
    dropped = sorted(theirs.keys() - ours.keys())
    if strange := [name for name in dropped if not explained(name)]:
        raise ConfigError(
            f"config.train.init_from: its {strange[0]} has no place here: take the "
            "source's depth and attention"
        )
    say(
        f"init_from: {len(ours) - len(new)} arrays carried over; new: "
        f"{', '.join(new) or 'none'}; dropped: {', '.join(dropped) or 'none'}"
    )
    return jax.tree.unflatten(jax.tree.structure(fresh), [taken[name] for name in ours])


def _fewer_rows(one: Any, other: Any) -> bool:
    """Whether the first array only has fewer rows than the second."""
    return one.shape[1:] == other.shape[1:] and one.shape[0] < other.shape[0]
