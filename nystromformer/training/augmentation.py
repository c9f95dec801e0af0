"""Augmentation: training examples in another form that has the same label.

The form is drawn inside the training step, from its key and the number of the example:
a function of the seed, the step and the part of the batch, so that a resumed run draws
the same. An evaluation, which has no key, sees the examples as they are.

Letters: B batch, L length.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nystromformer.streams import AUGMENTATION
from nystromformer.training.data import Batch
from nystromformer.training.metrics import Sums
from nystromformer.training.objective import Objective

# (tokens int32 [L], random key) -> tokens of the same label, int32 [L]
Augmentation = Callable[[jax.Array, jax.Array], jax.Array]


class Augmented:
    """An objective whose training examples are augmented first.

    Args:
      objective: of batches of one sequence an example.
      augmentations: are applied one after another.
    """

    def __init__(self, objective: Objective, augmentations: Sequence[Augmentation]):
        self.objective = objective
        self.augmentations = augmentations
        self.metrics = objective.metrics
        self.select = objective.select
        self.higher_is_better = objective.higher_is_better

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """As of the objective; key None: an evaluation, without augmentation."""
        if key is not None:
            stream = jax.random.fold_in(key, AUGMENTATION)
            batch = batch._replace(inputs=self.augment(batch, stream))
        return self.objective(model, batch, key)

    def augment(self, batch: Batch, key: jax.Array) -> jax.Array:
        """The inputs int32 [B, L] in the form that the key draws for each example."""

        def one(tokens: jax.Array, example: jax.Array) -> jax.Array:
            of_example = jax.random.fold_in(key, example)
            for number, augmentation in enumerate(self.augmentations):
                tokens = augmentation(tokens, jax.random.fold_in(of_example, number))
            return tokens

        return jax.vmap(one)(batch.inputs, batch.indices)


def flip(tokens: jax.Array, key: jax.Array, *, axis: int) -> jax.Array:
    """A square picture [R · R], row by row, mirrored or not, each with probability ½.

    Args:
      axis: 0 exchanges above and below, 1 left and right.
    """
    side = math.isqrt(len(tokens))
    picture = tokens.reshape(side, side)
    mirrored = jnp.where(jax.random.bernoulli(key), jnp.flip(picture, axis), picture)
    return mirrored.reshape(-1)


def shuffle_arguments(
    tokens: jax.Array, key: jax.Array, *, operators: Sequence[int], close: int
) -> jax.Array:
    """A nested expression in which every operator has its arguments in a new order.

    All orders are equally likely. What stands outside of all operators, as padding
    does, stays where it is.

    Args:
      tokens: [L], with each operator in front of its arguments and `close` behind them.
      operators: the ids of the operators, none of which minds the order.
      close: the id of the closing bracket.

    Returns:
      [L], as long and as deeply nested.
    """
    position = jnp.arange(len(tokens))
    opens = jnp.isin(tokens, jnp.array(operators))
    closes = tokens == close
    # How many operators are around a token; a bracket is where its operator is.
    level = jnp.cumsum(opens) - opens - jnp.cumsum(closes)

    def find(k: jax.Array, found: Any) -> Any:
        parent, opener = found
        last = lax.cummax(jnp.where(opens & (level == k), position, -1))
        parent = jnp.where(~closes & (level == k + 1), last, parent)
        return parent, jnp.where(closes & (level == k), last, opener)

    nowhere = jnp.full_like(position, -1)
    deepest = level.max()
    parent, opener = lax.fori_loop(0, deepest, find, (nowhere, nowhere))

    behind = len(tokens)  # an index that a scatter drops
    whole = position - opener + 1  # of a bracket: the size of what it closes
    size = jnp.ones_like(position)
    size = size.at[jnp.where(closes, opener, behind)].set(whole, mode="drop")

    # Arguments of one operator in a random order, and what is in front of each.
    is_argument = ~closes & (parent >= 0)
    family = jnp.where(is_argument, parent, behind)
    family, _, order = lax.sort(
        (family, jax.random.bits(key, position.shape), position), num_keys=2
    )
    before = jnp.cumsum(size[order]) - size[order]
    is_first = family != jnp.roll(family, 1)
    is_first = is_first.at[0].set(True)
    offset = 1 + before - lax.cummax(jnp.where(is_first, before, 0))
    offset = jnp.zeros_like(offset).at[order].set(offset)

    def move(k: jax.Array, place: jax.Array) -> jax.Array:
        moved = place[parent] + offset
        return jnp.where(is_argument & (level == k), moved, place)

    place = lax.fori_loop(1, deepest + 1, move, position)
    place = jnp.where(closes, place[opener] + size[opener] - 1, place)
    return tokens.at[place].set(tokens)
