"""Starting from another run: which of its weights are carried over."""

import jax
import numpy as np
from etils import epath

from lra_tasks.subwords import Vocabulary, open_vocabulary
from lra_tasks.task import Task
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.experiments.workdir import TOKENIZER_FILE
from nystromformer.training.step import Weights, named_leaves

EMBEDDING = "params.encoder.embedding.embedding"
POSITIONS = "params.encoder.positions"


def carry_over(source: TrainedRun, experiment: Experiment) -> dict[str, np.ndarray]:
    """The source's weights that an experiment begins with, by name; prints which.

    All arrays of equal name and shape are taken. New or dropped may be heads and,
    between different attentions, the attentions' own parameters. More positions
    repeat the source's; fewer are its first. Rows of the source's embedding beyond
    our vocabulary, as of a mask token, are dropped. ConfigError for other tokens, or an
    encoder of another width, depth or vocabulary.
    """
    folder = epath.Path(str(experiment.config.train.init_from))
    words = folder.expanduser() / TOKENIZER_FILE
    vocabulary = open_vocabulary(str(words)) if words.exists() else None
    tokens = _tokens(source.task, vocabulary), _tokens(experiment.task)
    heads = source.config.model.num_heads, experiment.config.model.num_heads
    positions = source.config.model.positions, experiment.config.model.positions
    for name, (there, here) in (
        ("vocabulary", tokens),
        ("num_heads", heads),
        ("positions", positions),
    ):
        if there != here:  # no shape tells
            which = f"has {name} {there}, and this run {here}: take the same"
            raise ConfigError(f"config.train.init_from={folder} {which}")
    theirs = named_leaves(source.weights)
    ours = named_leaves(experiment.weight_shapes)
    same_attention = source.config.attention.name == experiment.config.attention.name
    taken = {}
    for name in {**ours, **theirs}:
        there, here = (list(x[name].shape) if name in x else [] for x in (theirs, ours))
        of_attention = ".attention.attention." in name and not same_attention
        if name in ours and name in theirs and there == here:
            taken[name] = theirs[name]
        elif there[1:] == here[1:] and (
            name == POSITIONS or (name == EMBEDDING and there > here)
        ):
            taken[name] = np.resize(theirs[name], here)  # repeats whole rows
            print(f"init_from: {name}: {there[0]} rows repeated or cut to {here[0]}")
        elif name.startswith("params.encoder.") and not of_attention:
            sizes = f"{here or 'missing'} here and {there or 'missing'} there"
            rule = "take the source's width, depth, vocabulary, attention, short_conv"
            raise ConfigError(f"config.train.init_from: {name} is {sizes}: {rule}")
    new, old = (", ".join(sorted(x.keys() - taken.keys())) for x in (ours, theirs))
    print(f"init_from: {len(taken)} arrays carried over; new: {new}; dropped: {old}")
    return taken


def _tokens(task: Task, vocabulary: Vocabulary | None = None) -> str:
    """The size of a task's vocabulary and, if it is of sub-words, its digest."""
    vocabulary = vocabulary or task.vocabulary
    return f"{task.vocab_size:,}" + (f" of {vocabulary.digest}" if vocabulary else "")


def with_weights(fresh: Weights, taken: dict[str, np.ndarray]) -> Weights:
    """Fresh weights with those that are carried over in their places."""
    leaves = [taken.get(name, leaf) for name, leaf in named_leaves(fresh).items()]
    return jax.tree.unflatten(jax.tree.structure(fresh), leaves)
