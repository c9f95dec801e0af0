"""Starting from another run: which of its weights are carried over, and which not."""

import dataclasses
from pathlib import Path

import jax
import numpy as np

from nystromformer.config import Config, ConfigError
from nystromformer.lab.trained_run import TrainedRun, load_run
from nystromformer.training.arrays import digest, named_leaves
from nystromformer.training.checkpoint import steps_in
from nystromformer.training.step import Weights

EMBEDDING = "params.encoder.embedding.embedding"
POSITIONS = "params.encoder.positions"


@dataclasses.dataclass(frozen=True)
class Source:
    """The run to start from; params_sha256: of its best weights."""

    run: TrainedRun

    @property
    def params_sha256(self) -> str:
        return digest(self.run.weights)

    def carried_over(self, fresh: Weights, config: Config) -> Weights:
        """See `carried_over`."""
        return carried_over(self.run, fresh, config)


def start_from(config: Config) -> Source:
    """The run that `train.init_from` names.

    Raises:
      ConfigError: it is no run, or not finished.
    """
    folder = Path(str(config.train.init_from)).expanduser()
    if steps_in(folder / "checkpoints"):
        raise ConfigError(
            f"config.train.init_from={folder} is not finished: train it to its end"
        )
    return Source(load_run(folder))


def carried_over(source: TrainedRun, fresh: Weights, config: Config) -> Weights:
    """The fresh weights with all that fits from the source; prints what does not.

    Whatever fits by name and shape is taken. A head may be new or dropped, and so may
    the parameters of another attention. Positions may be more: the old rows, repeated.
    Of the embedding the rows beyond our vocabulary, as of a mask token, are dropped.

    Raises:
      ConfigError: an encoder of another width, depth or vocabulary.
    """
    theirs, ours = named_leaves(source.weights), named_leaves(fresh)
    other_attention = source.config.attention.name != config.attention.name

    def explained(name: str) -> bool:
        own = ".attention.attention." in name and other_attention
        return own or not name.startswith("params.encoder.")

    taken, new = dict(ours), []
    for name, leaf in ours.items():
        found = theirs.get(name)
        if found is not None and found.shape == leaf.shape:
            taken[name] = found
        elif found is not None and name == EMBEDDING and _fewer_rows(leaf, found):
            taken[name] = found[: len(leaf)]
            print(f"init_from: {name}: {len(found) - len(leaf)} rows dropped")
        elif found is not None and name == POSITIONS and _fewer_rows(found, leaf):
            repeats = -(-len(leaf) // len(found))
            taken[name] = np.tile(found, (repeats, 1))[: len(leaf)]
            print(f"init_from: {name}: {len(found)} rows repeated to {len(leaf)}")
        elif explained(name):
            new.append(name)
        else:
            theirs_is = "missing" if found is None else f"{found.shape} there"
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
    print(
        f"init_from: {len(ours) - len(new)} arrays carried over; new: "
        f"{', '.join(new) or 'none'}; dropped: {', '.join(dropped) or 'none'}"
    )
    return jax.tree.unflatten(jax.tree.structure(fresh), [taken[name] for name in ours])


def _fewer_rows(one: np.ndarray, other: np.ndarray) -> bool:
    return len(one) < len(other) and one.shape[1:] == other.shape[1:]
