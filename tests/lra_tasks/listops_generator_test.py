"""Drawn expressions against the recursion that they stand for, tree by tree."""

import random
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from lra_tasks.errors import DataError
from lra_tasks.listops import ListOps
from lra_tasks.listops_generator import OPERATORS, VOCABULARY
from tests.lra_tasks.listops_cases import APPLY, value_of

SHORT = ListOps(min_tokens=10, max_tokens=64, max_length=64)


class Tree(NamedTuple):
    """An expression; the root of a digit is None."""

    length: int
    root: str | None
    value: int
    num_operators: int
    depth: int


def draw_reference_trees(count, shortest, longest, max_depth):
    """Draws trees one by one, by the recursion, until `count` have a fitting length."""
    rng = random.Random(0)

    def grow(depth):
        if depth >= max_depth or rng.random() >= 0.25:
            return Tree(
                length=1,
                root=None,
                value=rng.randrange(10),
                num_operators=0,
                depth=1,
            )
        operator = rng.choice(OPERATORS)
        children = [grow(depth + 1) for _ in range(rng.randint(2, 10))]
        return Tree(
            length=2 + sum(child.length for child in children),
            root=operator,
            value=APPLY[operator]([child.value for child in children]),
            num_operators=1 + sum(child.num_operators for child in children),
            depth=1 + max(child.depth for child in children),
        )

    trees = []
    while len(trees) < count:
        tree = grow(1)
        if shortest <= tree.length <= longest:
            trees.append(tree)
    return trees


def measure(split):
    """The trees of a split, from their tokens."""
    is_operator = (split.inputs >= 1) & (split.inputs <= 4)
    is_close = split.inputs == 5
    depth = np.cumsum(is_operator.astype(int) - is_close, axis=1).max(axis=1) + 1
    num_operators = is_operator.sum(axis=1)
    roots = [VOCABULARY[token] for token in split.inputs[:, 0]]
    columns = (split.lengths, roots, split.labels, num_operators, depth)
    return [Tree(*values) for values in zip(*columns, strict=True)]


def assert_same_distribution(values, reference, bins=None):
    """χ² of two samples over categories, far beyond chance only if they differ."""
    if bins is not None:
        values = np.digitize(values, bins).tolist()
        reference = np.digitize(reference, bins).tolist()
    counts = Counter(values)
    reference_counts = Counter(reference)
    keys = counts | reference_counts
    a = np.array([counts[key] for key in keys])
    b = np.array([reference_counts[key] for key in keys])
    scale = np.sqrt(b.sum() / a.sum())
    differences = a * scale - b / scale
    chi_squared = np.sum(differences**2 / (a + b))
    freedom = len(a) - 1
    assert chi_squared <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("shortest", "longest", "max_depth", "count"),
    [(10, 64, 10, 701), (501, 1999, 10, 401), (10, 64, 3, 2003)],
)
def test_generate_draws_from_the_distribution_of_the_recursion(
    shortest, longest, max_depth, count
):
    task = ListOps(
        seed=3,
        max_depth=max_depth,
        min_tokens=shortest,
        max_tokens=longest,
        max_length=longest,
    )
    split = task.generate(5 * count)
    np.testing.assert_array_equal((split.inputs > 0).sum(axis=1), split.lengths)
    for row in range(300):
        expression = split.inputs[row, : split.lengths[row]]
        assert value_of(expression) == split.labels[row]

    trees = measure(split)
    reference = draw_reference_trees(count, shortest, longest, max_depth)
    for field, bins in (
        ("length", np.linspace(shortest, longest, 12)),
        ("root", None),
        ("value", None),
        ("depth", None),
    ):
        assert_same_distribution(
            [getattr(tree, field) for tree in trees],
            [getattr(tree, field) for tree in reference],
            bins,
        )
    assert_same_distribution(
        [tree.num_operators / tree.length for tree in trees],
        [tree.num_operators / tree.length for tree in reference],
        bins=np.linspace(0.1, 0.3, 9),
    )


@pytest.mark.parametrize(
    ("shortest", "longest", "max_length"), [(17, 17, 64), (10, 1999, 23)]
)
def test_generate_keeps_its_limits_and_reaches_them(shortest, longest, max_length):
    task = ListOps(
        min_tokens=shortest, max_tokens=longest, max_length=max_length, max_args=3
    )
    split = task.generate(2003)
    assert split.inputs.shape[1] == max_length
    expected_lengths = range(shortest, min(longest, max_length) + 1)
    assert set(split.lengths.tolist()) == set(expected_lengths)

    num_operators = ((split.inputs >= 1) & (split.inputs <= 4)).sum(axis=1)
    num_nodes = (split.inputs > 0).sum(axis=1) - num_operators  # without the brackets
    num_arguments = num_nodes - 1  # every node but the root
    assert np.all(2 * num_operators <= num_arguments)
    assert np.all(num_arguments <= 3 * num_operators)


def test_generate_draws_no_expression_twice_and_ends_when_there_are_no_more():
    # Two digits under one operator make 4 × 10 × 10 expressions of four tokens.
    task = ListOps(min_tokens=4, max_tokens=4, max_length=4)
    assert len({row.tobytes() for row in task.generate(400).inputs}) == 400
    with pytest.raises(DataError, match="only 400 of 401 different expressions"):
        task.generate(401)


def test_generate_draws_the_same_data_on_every_machine():
    # The one expected value that is copied from the output: it may never change
    # without a new ListOps.data_version, for prepared data and results rely on it.
    digest = "7deef8ede59cc9f15108073edbe9a43e1125084d76b072eaa6311daa6dadbf7d"
    assert SHORT.generate(509).content_hash == digest
    assert SHORT.generate(1013).take(slice(509)).content_hash == digest
    assert replace(SHORT, seed=1).generate(509).content_hash != digest


def test_generate_draws_the_same_expressions_into_wider_rows():
    split = SHORT.generate(509)
    wider_split = replace(SHORT, max_length=67).generate(509)
    cut_split = replace(wider_split, inputs=wider_split.inputs[:, :64])
    assert cut_split.content_hash == split.content_hash
    assert not wider_split.inputs[:, 64:].any()
