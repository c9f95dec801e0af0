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
      objective: of batches with one sequence an example.
      augmentations: are applied one after another.
    """

    def __init__(self, objective: Objective, augmentations: Sequence[Augmentation]):
        self.objective = objective
        self.augmentations = augmentations

    @property
    def metrics(self) -> Sequence[str]:
        return self.objective.metrics

    @property
    def select(self) -> str:
        return self.objective.select

    @property
    def higher_is_better(self) -> bool:
        return self.objective.higher_is_better

    def __call__(self, model: Any, batch: Batch, key: jax.Array | None) -> Sums:
        """The sums of the objective. An evaluation, with key None, augments nothing."""
        if key is not None:
            augmentation_key = jax.random.fold_in(key, AUGMENTATION)
            inputs = self.augment(batch, augmentation_key)
            batch = batch._replace(inputs=inputs)
        return self.objective(model, batch, key)

    def augment(self, batch: Batch, key: jax.Array) -> jax.Array:
        """The inputs int32 [B, L] in the form that the key draws for each example."""

        def augment_example(tokens: jax.Array, example: jax.Array) -> jax.Array:
            example_key = jax.random.fold_in(key, example)
            for number, augmentation in enumerate(self.augmentations):
                tokens = augmentation(tokens, jax.random.fold_in(example_key, number))
            return tokens

        return jax.vmap(augment_example)(batch.inputs, batch.indices)


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
    length = len(tokens)
    positions = jnp.arange(length)
    is_operator = jnp.isin(tokens, jnp.array(operators))
    is_close = tokens == close
    # The level is how many operators are around a token. A bracket has that of its
    # operator.
    level = jnp.cumsum(is_operator) - is_operator - jnp.cumsum(is_close)
    deepest = level.max()

    # For each token the operator around it, and for each bracket its own operator.
    def find_operators(
        k: jax.Array, operators_before: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        parent, opener = operators_before
        last = lax.cummax(jnp.where(is_operator & (level == k), positions, -1))
        parent = jnp.where(~is_close & (level == k + 1), last, parent)
        opener = jnp.where(is_close & (level == k), last, opener)
        return parent, opener

    nowhere = jnp.full_like(positions, -1)
    parent, opener = lax.fori_loop(0, deepest, find_operators, (nowhere, nowhere))

    # An operator is as long as all from it to its bracket, any other token is one long.
    outside = length  # an index that a scatter drops
    length_of_brackets = positions - opener + 1
    size = jnp.ones_like(positions)
    size = size.at[jnp.where(is_close, opener, outside)].set(
        length_of_brackets, mode="drop"
    )

    # Sort by operator, and its arguments at random. The offset of an argument from its
    # operator is then the size of all arguments that come before it.
    is_argument = ~is_close & (parent >= 0)
    family, _, order = lax.sort(
        (
            jnp.where(is_argument, parent, outside),
            jax.random.bits(key, positions.shape),
            positions,
        ),
        num_keys=2,
    )
    size_before = jnp.cumsum(size[order]) - size[order]
    is_first = family != jnp.roll(family, 1)
    is_first = is_first.at[0].set(True)
    size_before_family = lax.cummax(jnp.where(is_first, size_before, 0))
    sorted_offset = 1 + size_before - size_before_family
    offset = jnp.zeros_like(sorted_offset).at[order].set(sorted_offset)

    # Outer operators have their new places before the arguments inside them.
    def place_arguments(k: jax.Array, place: jax.Array) -> jax.Array:
        is_on_level = is_argument & (level == k)
        return jnp.where(is_on_level, place[parent] + offset, place)

    place = lax.fori_loop(1, deepest + 1, place_arguments, positions)
    place = jnp.where(is_close, place[opener] + size[opener] - 1, place)
    return tokens.at[place].set(tokens)
