"""Draws ListOps expressions and their values, many trees at once, level by level.

`[MAX 4 [MED 1 9 2 ] 0 ]` is 4: [MIN, [MAX, [MED (the median, truncated) and [SM (the
sum modulo 10) take two or more arguments and end with ]. An expression is a tree, whose
level at depth d holds all operators that stand within d - 1 others.

A tree is drawn in three steps: `_grow` draws the shapes of many trees from the root
down; of those whose length fits, `_draw_contents` draws operators and digits from the
deepest level up, as an operator's value needs those of its arguments; `_write_tokens`
goes down again and writes each level's tokens to their places.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from lra_tasks.errors import DataError
from lra_tasks.split import Split

# The index is the token id. The order is written out, as a checkpoint relies on it.
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
VOCABULARY = ("<pad>", *OPERATORS, "]", *DIGITS)
TOKEN_ID = {token: index for index, token in enumerate(VOCABULARY) if index}
FIRST_OPERATOR = TOKEN_ID["[MIN"]
CLOSE = TOKEN_ID["]"]
FIRST_DIGIT = TOKEN_ID["0"]

# The number of trees in a round. The data of a seed depend on this number: changing it
# changes them.
TREES_PER_ROUND = 2048
# The probability that an argument above the deepest level is an operator.
OPERATOR_SHARE = 0.25
# After this many rounds without a new tree there are probably no other trees.
ROUNDS_WITHOUT_NEWS = 100


class _Level(NamedTuple):
    """The operators at one depth of many trees, in the order of their parents."""

    tree: np.ndarray  # [operators], the tree that each belongs to, ascending
    arity: np.ndarray  # [operators], the number of its arguments
    is_nested: np.ndarray  # bool [sum of arities], whether an argument is an operator


class _Contents(NamedTuple):
    """What stands at one level, and where."""

    kind: np.ndarray  # [operators], an index of OPERATORS
    value: np.ndarray  # [operators], its result
    size: np.ndarray  # [operators], the number of its tokens
    argument_value: np.ndarray  # [sum of arities]
    argument_offset: np.ndarray  # [sum of arities], its place behind the operator's own


def generate(
    num_examples: int,
    *,
    seed: int,
    min_tokens: int,
    max_tokens: int,
    max_length: int,
    max_depth: int,
    max_args: int,
) -> Split:
    """Draws distinct expressions; the options are those of `ListOps`.

    The result is a function of the arguments, the same on every machine.

    Returns:
      Inputs uint8 `[num_examples, max_length]`, lengths and labels `[num_examples]`.

    Raises:
      DataError: if there are not as many different expressions of these lengths.
    """
    inputs = np.zeros((num_examples, max_length), np.uint8)
    lengths = np.zeros(num_examples, np.int32)
    labels = np.zeros(num_examples, np.int32)

    rng = np.random.Generator(np.random.Philox(seed))
    longest = min(max_tokens, max_length)
    seen_digests: set[bytes] = set()
    idle_rounds = 0
    with tqdm(total=num_examples, desc="listops", disable=None, leave=False) as bar:
        while len(seen_digests) < num_examples and idle_rounds < ROUNDS_WITHOUT_NEWS:
            num_before = len(seen_digests)
            levels, sizes = _grow(rng, longest, max_depth, max_args)
            is_kept = (min_tokens <= sizes) & (sizes <= longest)
            levels = _keep(levels, is_kept)
            contents = _draw_contents(rng, levels)
            rows = np.zeros((is_kept.sum(), max_length), np.uint8)
            _write_tokens(levels, contents, rows)

            values = contents[0].value  # those of the roots
            for row, size, value in zip(rows, sizes[is_kept], values, strict=True):
                digest = hashlib.blake2b(row[:size].tobytes(), digest_size=16).digest()
                if digest not in seen_digests and len(seen_digests) < num_examples:
                    place = len(seen_digests)
                    inputs[place] = row
                    lengths[place] = size
                    labels[place] = value
                    seen_digests.add(digest)

            num_new = len(seen_digests) - num_before
            bar.update(num_new)
            idle_rounds = 0 if num_new else idle_rounds + 1

    if len(seen_digests) < num_examples:
        raise DataError(
            f"found only {len(seen_digests)} of {num_examples} different expressions "
            f"of {min_tokens} to {longest} tokens: ask for fewer, or widen the lengths"
        )
    return Split(inputs, lengths, labels)


def _grow(
    rng: np.random.Generator, longest: int, max_depth: int, max_args: int
) -> tuple[list[_Level], np.ndarray]:
    """Draws the shapes of TREES_PER_ROUND trees; also their lengths `[trees]`.

    Three draws are saved, which changes neither the kept trees nor their distribution.
    The length, 1 + Σ over operators of (1 + arity), depends on the shape alone, so the
    operators' kinds and the digits, independent of it, are drawn for kept trees only.
    Every root is an operator: a root that is a digit has length 1 and is never kept.
    A tree beyond `longest` tokens stops growing: it could only get longer.
    """
    length = np.ones(TREES_PER_ROUND, np.int64)
    tree = np.arange(TREES_PER_ROUND)  # the tree of each operator at this depth
    levels = []
    for depth in range(1, max_depth):
        arity = rng.integers(2, max_args, len(tree), np.uint8, endpoint=True)
        length += np.bincount(tree, 1 + arity, TREES_PER_ROUND).astype(np.int64)
        is_short_enough = length[tree] <= longest
        tree = tree[is_short_enough]
        arity = arity[is_short_enough]

        is_deepest = depth + 1 == max_depth
        share = 0 if is_deepest else OPERATOR_SHARE
        is_nested = rng.random(arity.sum(dtype=np.int64), np.float32) < share
        levels.append(_Level(tree, arity, is_nested))
        tree = np.repeat(tree, arity)[is_nested]
    return levels, length


def _keep(levels: list[_Level], is_kept: np.ndarray) -> list[_Level]:
    """The levels of the trees in `is_kept` (bool `[trees]`), renumbered from 0."""
    new_number = np.cumsum(is_kept) - 1
    kept_levels = []
    for tree, arity, is_nested in levels:
        stays = is_kept[tree]
        argument_stays = np.repeat(stays, arity)
        kept_levels.append(
            _Level(new_number[tree[stays]], arity[stays], is_nested[argument_stays])
        )
    return kept_levels


def _draw_contents(rng: np.random.Generator, levels: list[_Level]) -> list[_Contents]:
    """Draws operators and digits, and computes values and places, for each level.

    For `[MAX 4 [MED 1 9 2 ] 0 ]` the deeper level has one operator of value 2 and size
    5. In the upper one the arguments' values are 4, 2 and 0, their sizes 1, 5 and 1,
    their offsets behind [MAX 0, 1 and 6; the whole has the value 4 and the size 9.
    """
    value = np.empty(0, np.uint8)  # the values of the operators one level below
    size = np.empty(0, np.int64)
    contents = []
    for _, arity, is_nested in reversed(levels):
        kind = rng.integers(len(OPERATORS), size=len(arity), dtype=np.uint8)
        argument_value = rng.integers(10, size=len(is_nested), dtype=np.uint8)
        argument_value[is_nested] = value
        argument_size = np.ones(len(is_nested), np.int64)
        argument_size[is_nested] = size

        # Tokens in front of each argument, first over the whole level, then within
        # its operator.
        num_in_front = np.cumsum(argument_size) - argument_size
        first_argument = np.cumsum(arity, dtype=np.int64) - arity
        offset = num_in_front - np.repeat(num_in_front[first_argument], arity)

        value = apply(kind, arity, argument_value)
        if len(arity):  # reduceat wants an index
            size = 2 + np.add.reduceat(argument_size, first_argument)
        else:
            size = np.empty(0, np.int64)
        contents.append(_Contents(kind, value, size, argument_value, offset))
    return contents[::-1]


def _write_tokens(
    levels: list[_Level], contents: list[_Contents], inputs: np.ndarray
) -> None:
    """Fills `inputs` (zeros `[trees, L]`) with the tokens of all trees.

    Where an argument is an operator, its value is written first, and then, with the
    next level, the operator over it.
    """
    flat = inputs.reshape(-1)
    start = np.arange(len(inputs)) * inputs.shape[1]  # where each operator begins
    for (_, arity, is_nested), level_contents in zip(levels, contents, strict=True):
        flat[start] = FIRST_OPERATOR + level_contents.kind
        flat[start + level_contents.size - 1] = CLOSE
        place = np.repeat(start + 1, arity) + level_contents.argument_offset
        flat[place] = FIRST_DIGIT + level_contents.argument_value
        start = place[is_nested]


def apply(kind: np.ndarray, arity: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """Computes the values of many operators.

    Args:
      kind: indices of OPERATORS `[n]`.
      arity: the number of arguments of each, `[n]`.
      arguments: all arguments in a row, digits `[arity.sum()]`.

    Returns:
      The values uint8 `[n]`.
    """
    # A row for each operator; 255 fills it and goes behind every digit when sorted.
    table = np.full((len(arity), arity.max(initial=1)), 255, np.uint8)
    is_argument = np.arange(table.shape[1]) < arity[:, None]
    table[is_argument] = arguments
    total = np.sum(table, axis=1, where=is_argument, dtype=np.int64)

    table.sort(axis=1)
    row = np.arange(len(table))
    minimum = table[:, 0]
    maximum = table[row, arity - 1]
    median = (table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2
    return np.choose(kind, [minimum, maximum, median, total % 10]).astype(np.uint8)
