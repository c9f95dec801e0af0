"""The generator against the process as one would write it down: a recursion."""

import collections
import random
import statistics

import numpy as np
import pytest

from lra_tasks.listops import OPERATORS, VOCABULARY, generate
from lra_tasks.split import DataError, Split

SHORT = {"min_tokens": 10, "max_tokens": 64, "max_length": 64}
APPLY = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def evaluate(ids):
    """The value of an expression, by hand."""
    stack = [[]]
    for word in (VOCABULARY[token] for token in ids):
        if word in APPLY:
            stack.append([word])
        elif word == "]":
            operator, *values = stack.pop()
            stack[-1].append(APPLY[operator](values))
        else:
            stack[-1].append(int(word))
    ((value,),) = stack
    return value


def reference_trees(count, shortest, longest, max_depth):
    """(length, root, label, operators, depth) of `count` kept trees, one by one."""
    draw = random.Random(0)

    def grow(depth):
        if depth >= max_depth or draw.random() >= 0.25:
            return 1, None, draw.randrange(10), 0, 1
        operator = draw.choice(OPERATORS)
        children = [grow(depth + 1) for _ in range(draw.randint(2, 10))]
        sizes, _, values, operators, depths = zip(*children, strict=True)
        value = APPLY[operator](values)
        return 2 + sum(sizes), operator, value, 1 + sum(operators), 1 + max(depths)

    while count:
        tree = grow(1)
        if shortest <= tree[0] <= longest:
            count -= 1
            yield tree


def assert_same_distribution(ours, theirs, bins=None):
    """χ² of two samples over categories, far beyond chance only if they differ."""
    if bins is not None:
        ours, theirs = (np.digitize(x, bins).tolist() for x in (ours, theirs))
    ours, theirs = collections.Counter(ours), collections.Counter(theirs)
    a, b = np.array([(ours[key], theirs[key]) for key in ours | theirs]).T
    scale = np.sqrt(b.sum() / a.sum())
    statistic = np.sum((a * scale - b / scale) ** 2 / (a + b))
    freedom = len(a) - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("shortest", "longest", "max_depth", "count"),
    [(10, 64, 10, 701), (501, 1999, 10, 401), (10, 64, 3, 2003)],
)
def test_distribution_is_the_recursions(shortest, longest, max_depth, count):
    limits = {"min_tokens": shortest, "max_tokens": longest, "max_length": longest}
    inputs, lengths, labels = generate(3, 5 * count, max_depth=max_depth, **limits)
    for ids, n, value in zip(inputs[:300], lengths, labels, strict=False):
        assert evaluate(ids[:n]) == value
    np.testing.assert_array_equal((inputs > 0).sum(axis=1), lengths)
    theirs = list(reference_trees(count, shortest, longest, max_depth))
    length, root, label, operators, depth = zip(*theirs, strict=True)
    opens = (inputs >= 1) & (inputs <= 4)
    our_depth = np.cumsum(opens.astype(int) - (inputs == 5), axis=1).max(axis=1) + 1
    share = np.array(operators) / length
    assert_same_distribution(lengths, length, np.linspace(shortest, longest, 12))
    assert_same_distribution([VOCABULARY[token] for token in inputs[:, 0]], root)
    assert_same_distribution(labels.tolist(), label)
    assert_same_distribution(our_depth.tolist(), depth)
    assert_same_distribution(opens.sum(1) / lengths, share, np.linspace(0.1, 0.3, 9))


@pytest.mark.parametrize(
    ("shortest", "longest", "max_length"), [(17, 17, 64), (10, 1999, 23)]
)
def test_limits_are_kept_and_reached(shortest, longest, max_length):
    limits = {"min_tokens": shortest, "max_tokens": longest, "max_length": max_length}
    inputs, lengths, _ = generate(0, 2003, max_args=3, **limits)
    assert inputs.shape[1] == max_length
    reached = set(range(shortest, min(longest, max_length) + 1))
    assert set(lengths.tolist()) == reached
    operators = ((inputs >= 1) & (inputs <= 4)).sum(axis=1)
    arguments = (inputs > 0).sum(axis=1) - 1 - operators  # each node but the root
    assert np.all((2 * operators <= arguments) & (arguments <= 3 * operators))


def test_no_expression_twice_and_an_end_when_there_are_no_more():
    # Two digits under one operator: 4 × 10 × 10 expressions of four tokens.
    four = {"min_tokens": 4, "max_tokens": 4, "max_length": 4}
    inputs, _, _ = generate(0, 400, **four)
    assert len({row.tobytes() for row in inputs}) == 400
    with pytest.raises(DataError, match="only 400 of 401 different expressions"):
        generate(0, 401, **four)


def test_same_seed_same_data_on_every_machine():
    # The one expected value that is copied from the output: it may never change
    # without a new ListOps.data_version, for prepared data and results rely on it.
    digest = Split(*generate(0, 509, **SHORT)).content_hash
    assert digest == "7deef8ede59cc9f15108073edbe9a43e1125084d76b072eaa6311daa6dadbf7d"
    assert Split(*generate(1, 509, **SHORT)).content_hash != digest
    more = generate(0, 1013, **SHORT)
    assert Split(*(array[:509] for array in more)).content_hash == digest
    wide, *rest = generate(0, 509, **SHORT | {"max_length": 67})
    assert Split(wide[:, :64].copy(), *rest).content_hash == digest
    assert not wide[:, 64:].any()
