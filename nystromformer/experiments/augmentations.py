"""Augmentation: training examples in a different form that has the same label.

The form is drawn inside the training step, from its key and the number of the example:
a function of the seed, the step and the part of the batch, so that a resumed run draws
the same. An evaluation sees the examples as they are.

Letters: B batch, L length.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from lra_tasks.listops import CLOSE, FIRST_OPERATOR
from lra_tasks.task import Task
from nystromformer.config import TrainConfig
from nystromformer.errors import ConfigError
from nystromformer.training.data import Batch
from nystromformer.training.step import Augment

# (tokens int32 [L], random key) -> tokens of the same label, int32 [L]
Augmentation = Callable[[jax.Array, jax.Array], jax.Array]


def make_augment(task: Task, train: TrainConfig) -> Augment | None:
    """Makes the function that applies the augmentations that a config switches on.

    Returns None if it switches none on.

    Raises:
      ConfigError: if one would change the labels of this task, or makes no sense for
        it.
    """
    augmentations = []
    for name, augmentation in AUGMENTATIONS.items():
        if not getattr(train, name):
            continue
        if name not in task.augmentations:
            names = (
                ", ".join(task.augmentations) or "no augmentation with these options"
            )
            raise ConfigError(
                f"config.train.{name} is not for {task.name}, which has {names}"
            )
        augmentations.append(augmentation)
    if not augmentations:
        return None
    return functools.partial(augment_batch, augmentations)


def augment_batch(
    augmentations: Sequence[Augmentation], batch: Batch, key: jax.Array
) -> Batch:
    """Applies functions one after another to the inputs [B, L] of a batch."""

    def augment_example(tokens: jax.Array, example: jax.Array) -> jax.Array:
        example_key = jax.random.fold_in(key, example)
        for number, augmentation in enumerate(augmentations):
            tokens = augmentation(tokens, jax.random.fold_in(example_key, number))
        return tokens

    inputs = jax.vmap(augment_example)(batch.inputs, batch.example_ids)
    return batch._replace(inputs=inputs)


def flip(tokens: jax.Array, key: jax.Array, *, axis: int) -> jax.Array:
    """A square picture [R · R], row by row, mirrored or not, each with probability ½.

    Args:
      axis: 0 exchanges above and below, 1 left and right.
    """
    side = math.isqrt(len(tokens))
    picture = tokens.reshape(side, side)
    mirrored = jnp.where(jax.random.bernoulli(key), jnp.flip(picture, axis), picture)
    return mirrored.reshape(-1)


class Nesting(NamedTuple):
    """How the operators of an expression are nested.

    Attributes:
      level: how many operators are around a token, int32 [L]. A bracket has the level
        of its operator.
      parent: the position of the innermost operator around a token, int32 [L]; -1 for
        a token outside of all operators, and for a bracket.
      opener: the position of a bracket's own operator, int32 [L]; -1 for a token that
        is no bracket.
    """

    level: jax.Array
    parent: jax.Array
    opener: jax.Array


def shuffle_arguments(
    tokens: jax.Array, key: jax.Array, *, operators: Sequence[int], close: int
) -> jax.Array:
    """A nested expression in which every operator has its arguments in a new order.

    All orders are equally likely. What stands outside of all operators, as padding
    does, stays where it is.

    Args:
      tokens: [L], with each operator in front of its arguments and `close` behind them.
      key: a random key; it decides the orders.
      operators: the ids of the operators, none of which minds the order.
      close: the id of the closing bracket.

    Returns:
      [L], as long and as deeply nested.
    """
    is_operator = jnp.isin(tokens, jnp.array(operators))
    is_close = tokens == close
    nesting = _find_nesting(is_operator, is_close)
    is_argument = ~is_close & (nesting.parent >= 0)
    size = _argument_sizes(is_close, nesting.opener)
    offset = _random_offsets(key, is_argument, nesting.parent, size)

    # An argument's place is its operator's new place plus its offset. Outer levels come
    # first, since inner places count from theirs.
    def place_arguments(level: jax.Array, place: jax.Array) -> jax.Array:
        is_on_level = is_argument & (nesting.level == level)
        return jnp.where(is_on_level, place[nesting.parent] + offset, place)

    positions = jnp.arange(len(tokens))
    deepest = nesting.level.max()
    place = lax.fori_loop(1, deepest + 1, place_arguments, positions)

    # A bracket ends what its operator begins. Other tokens have the opener -1, which
    # reads the last place here; `where` does not take it.
    end = place[nesting.opener] + size[nesting.opener] - 1
    place = jnp.where(is_close, end, place)
    return tokens.at[place].set(tokens)


def _find_nesting(is_operator: jax.Array, is_close: jax.Array) -> Nesting:
    """Finds the operators around each token.

    Args:
      is_operator: which tokens are operators, bool [L].
      is_close: which tokens are closing brackets, bool [L].
    """
    positions = jnp.arange(len(is_operator))
    level = jnp.cumsum(is_operator) - is_operator - jnp.cumsum(is_close)

    # All operators of one level are looked at together. Of these the last one before a
    # token is around it, if the token is one level deeper.
    def find_operators(
        operator_level: jax.Array, parent_and_opener: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        parent, opener = parent_and_opener
        is_on_level = level == operator_level
        is_below = level == operator_level + 1
        last = lax.cummax(jnp.where(is_operator & is_on_level, positions, -1))
        parent = jnp.where(~is_close & is_below, last, parent)
        opener = jnp.where(is_close & is_on_level, last, opener)
        return parent, opener

    nowhere = jnp.full_like(positions, -1)
    parent, opener = lax.fori_loop(0, level.max(), find_operators, (nowhere, nowhere))
    return Nesting(level, parent, opener)


def _argument_sizes(is_close: jax.Array, opener: jax.Array) -> jax.Array:
    """Counts the tokens of each argument.

    An operator is as long as all from it to its bracket, any other token is one long.

    Args:
      is_close: which tokens are closing brackets, bool [L].
      opener: as in Nesting.

    Returns:
      int32 [L], the size of the argument that begins at each position.
    """
    length = len(opener)
    positions = jnp.arange(length)
    # A scatter drops what goes to the index `length`, so that brackets alone write.
    target = jnp.where(is_close, opener, length)
    return jnp.ones_like(positions).at[target].set(positions - opener + 1, mode="drop")


def _random_offsets(
    key: jax.Array, is_argument: jax.Array, parent: jax.Array, size: jax.Array
) -> jax.Array:
    """Draws an order of the arguments of each operator.

    Args:
      key: a random key.
      is_argument: at which positions an argument begins, bool [L].
      parent: as in Nesting.
      size: the number of tokens of each argument, int32 [L].

    Returns:
      How far each argument is from its operator in that order, int32 [L]. What is no
      argument has a value without a meaning.
    """
    length = len(parent)
    # Arguments are sorted by their operator, and those of one operator at random. What
    # is no argument comes last.
    operator, _, order = lax.sort(
        (
            jnp.where(is_argument, parent, length),
            jax.random.bits(key, (length,)),
            jnp.arange(length),
        ),
        num_keys=2,
    )

    # An argument comes after its operator, which is one token, and after all arguments
    # of the operator that are sorted before it.
    size_before = jnp.cumsum(size[order]) - size[order]
    is_first = operator != jnp.roll(operator, 1)
    is_first = is_first.at[0].set(True)
    size_before_operator = lax.cummax(jnp.where(is_first, size_before, 0))
    sorted_offset = 1 + size_before - size_before_operator
    return jnp.zeros_like(sorted_offset).at[order].set(sorted_offset)


# By the names of their options in `train`, in the order in which they are applied.
AUGMENTATIONS: dict[str, Augmentation] = {
    "flip_horizontal": functools.partial(flip, axis=1),
    "flip_vertical": functools.partial(flip, axis=0),
    "shuffle_arguments": functools.partial(
        shuffle_arguments, operators=range(FIRST_OPERATOR, CLOSE), close=CLOSE
    ),
}
