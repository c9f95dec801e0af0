"""ListOps: nested lists of operators over digits; the label is the value.

`[MAX 4 [MED 1 9 2 ] 0 ]` is 4: [MIN, [MAX, [MED (the median, truncated) and [SM (the
sum modulo 10) take two or more arguments and end with ]. Nangia & Bowman 2018
(arXiv:1804.06028), in the lengths of Long Range Arena (Tay et al. 2021,
arXiv:2011.04006). The expressions are drawn here; the released files are read when
`source_dir` names their folder.

An expression is a tree, whose level at depth d holds all operators that stand within
d - 1 others. Many trees are drawn at once, in three steps: `_grow` draws the shapes of
many trees from the root down; of those whose length fits, `_draw_contents` draws
operators and digits from the deepest level up, as an operator's value needs those of
its arguments; `_write_tokens` goes down again and writes each level's tokens to their
places.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tqdm import tqdm

from lra_tasks.archives import UNPACKED, find
from lra_tasks.errors import DataError
from lra_tasks.split import Split, check_length, pad, report_other_size
from lra_tasks.tables import read_table
from lra_tasks.task import Task

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

# The released files are basic_NAME.tsv.
RELEASED_NAMES = {"train": "train", "validation": "val", "test": "test"}
NUM_RELEASED = {"train": 96_000, "val": 2_000, "test": 2_000}


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """By default the data of the benchmark, drawn anew.

    From the root at depth 1: below `max_depth` a node is an operator with probability
    0.25, at `max_depth` never, otherwise a digit. Operators, digits and 2 to `max_args`
    arguments are uniform. Of these trees those are kept for which min_tokens ≤ length ≤
    min(max_tokens, max_length), length counting operators, digits and closing brackets:
    500 < length < 2000 as in the paper. A lone digit is never kept.

    With `source_dir`, the folder of the released basic_train.tsv, basic_val.tsv and
    basic_test.tsv or of the unpacked release, these are read, and no other option but
    `max_length` has an effect.
    """

    name: ClassVar[str] = "listops"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Nested lists of operators; the label is their value."
    homepage: ClassVar[str] = "https://github.com/nyu-mll/spinn/tree/listops-release"
    citation: ClassVar[str] = "Nangia and Bowman, ListOps, NAACL SRW 2018"
    vocab_size: ClassVar[int] = len(VOCABULARY)
    num_classes: ClassVar[int] = 10
    files: ClassVar[str] = "basic_*.tsv"
    augmentations: ClassVar[tuple[str, ...]] = ("shuffle_arguments",)
    max_length: int = 2000
    num_train: int = 96_000
    num_validation: int = 2_000
    num_test: int = 2_000
    min_tokens: int = 501
    max_tokens: int = 1999
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_dir:
            return
        counts = (self.num_train, self.num_validation, self.num_test)
        self.require(min(counts) >= 1, f"each split needs an example, not {counts}")
        self.require(self.max_depth >= 2, "max_depth must be at least 2")
        self.require(2 <= self.max_args <= 100, "max_args must be 2 to 100")
        self.require(
            4 <= self.min_tokens <= self._longest,
            f"min_tokens must be 4 (one operator, two digits) to {self._longest}, not "
            f"{self.min_tokens}",
        )

    @property
    def _longest(self) -> int:
        """The length of the longest expression that is kept."""
        return min(self.max_tokens, self.max_length)

    def cache_key(self) -> dict[str, Any]:
        """As `Task.cache_key`; a `source_dir` leaves out the options for drawing."""
        key = super().cache_key()
        if not self.source_dir:
            return key
        return {name: key[name] for name in ("max_length", "source_dir")}

    @property
    def token_ids(self) -> str:
        return ", ".join(f"{i} {name}" for i, name in enumerate(VOCABULARY))

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            return {
                split: self._read_released(source, name)
                for split, name in RELEASED_NAMES.items()
            }
        # All splits are one draw, so that no expression is drawn twice.
        sizes = (self.num_train, self.num_validation, self.num_test)
        return self.generate(sum(sizes)).cut(sizes)

    def generate(self, num_examples: int) -> Split:
        """Draws distinct expressions as the options say.

        The result is a function of the options, the same on every machine.

        Raises:
          DataError: if there are not as many.
        """
        inputs = np.zeros((num_examples, self.max_length), np.uint8)
        lengths = np.zeros(num_examples, np.int32)
        labels = np.zeros(num_examples, np.int32)

        rng = np.random.Generator(np.random.Philox(self.seed))
        digests: set[bytes] = set()
        idle_rounds = 0
        with tqdm(total=num_examples, desc="listops", disable=None, leave=False) as bar:
            while len(digests) < num_examples and idle_rounds < ROUNDS_WITHOUT_NEWS:
                num_before = len(digests)
                for tokens, value in self._draw(rng):
                    digest = hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()
                    place = len(digests)
                    if digest in digests or place == num_examples:
                        continue
                    inputs[place, : len(tokens)] = tokens
                    lengths[place] = len(tokens)
                    labels[place] = value
                    digests.add(digest)

                num_new = len(digests) - num_before
                bar.update(num_new)
                idle_rounds = 0 if num_new else idle_rounds + 1

        if len(digests) < num_examples:
            raise DataError(
                f"found only {len(digests)} of {num_examples} different "
                f"expressions of {self.min_tokens} to {self._longest} tokens: ask for "
                "fewer, or widen the lengths"
            )
        return Split(inputs, lengths, labels)

    def _draw(self, rng: np.random.Generator) -> Split:
        """Draws TREES_PER_ROUND trees, and returns those whose length fits."""
        levels, sizes = _grow(rng, self._longest, self.max_depth, self.max_args)
        is_kept = (self.min_tokens <= sizes) & (sizes <= self._longest)
        levels = _keep(levels, is_kept)
        contents = _draw_contents(rng, levels)
        inputs = np.zeros((is_kept.sum(), self.max_length), np.uint8)
        _write_tokens(levels, contents, inputs)
        values_of_roots = contents[0].value
        return Split(inputs, sizes[is_kept], values_of_roots)

    def find_source(self, data_dir: Path) -> Path:
        """Finds the folder of the released files: `source_dir`, or one below it."""
        folder = super().find_source(data_dir)
        release_folders = [f"{above}listops-1000/" for above in UNPACKED]
        names = [f"{below}basic_train.tsv" for below in ("", *release_folders)]
        file = find(names, folder)
        return file.parent if file else folder

    def _read_released(self, folder: Path, name: str) -> Split:
        path = folder / f"basic_{name}.tsv"
        if not path.exists():
            raise DataError(
                f"{path} is missing: source_dir must be the folder of basic_train.tsv, "
                "basic_val.tsv and basic_test.tsv, or of the unpacked LRA release"
            )
        rows, labels = read_table(
            path, texts=["Source"], label="Target", classes=DIGITS
        )
        report_other_size(
            path,
            count=len(labels),
            num_released=NUM_RELEASED[name],
            noun="expressions",
        )
        try:
            return self.encode_split([text for (text,) in rows], labels)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; parentheses, as in the released files, are ignored.

        Raises:
          DataError: for another token, and for a text that is not one expression.
        """
        rows = []
        for number, text in enumerate(texts, start=1):
            tokens = text.replace("(", " ").replace(")", " ").split()
            try:
                ids = [TOKEN_ID[token] for token in tokens]
            except KeyError as error:
                raise DataError(
                    f"{self.name}: text {number}: {error} is not a token of ListOps; "
                    "they are divided by blanks, as in '[MAX 3 [MIN 8 5 ] ]'"
                ) from None
            check_length(f"{self.name}: text {number}", len(ids), self.max_length)
            row = np.array(ids, np.uint8)
            depths = _depths(row)
            self.require(
                bool((depths[:-1] > 0).all()) and depths[-1] == 0,
                f"text {number}, {text!r:.60}, is not one expression: close each "
                "operator once, as in '[MAX 3 [MIN 8 5 ] ]'",
            )
            rows.append(row)
        return pad(rows, self.max_length, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(VOCABULARY[token] for token in tokens)

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds two rules that look at the root; a root that is a digit is the answer.

        "root operator": the most frequent label of that root in `train`. "root operator
        and its literal arguments": the root applied to those of its arguments that are
        digits, and the first rule where there are none.
        """
        by_root = self._guess_by_root(train, test)
        by_literals = _guess_by_literals(test, by_root)
        return {
            **super().floors(train, test),
            "root operator": float(np.mean(by_root == test.labels)),
            "root operator and its literal arguments": float(
                np.mean(by_literals == test.labels)
            ),
        }

    def _guess_by_root(self, train: Split, test: Split) -> np.ndarray:
        counts = np.zeros((self.vocab_size, self.num_classes), int)
        np.add.at(counts, (train.inputs[:, 0], train.labels), 1)
        roots = test.inputs[:, 0].astype(int)
        is_digit = roots >= FIRST_DIGIT
        return np.where(is_digit, roots - FIRST_DIGIT, counts.argmax(axis=1)[roots])


def _depths(tokens: np.ndarray) -> np.ndarray:
    """The number of operators that are open after each token, int `[…, L]`."""
    is_operator = (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)
    is_close = tokens == CLOSE
    return np.cumsum(is_operator, axis=-1) - np.cumsum(is_close, axis=-1)


def _guess_by_literals(test: Split, by_root: np.ndarray) -> np.ndarray:
    """The root applied to its literal arguments; `by_root` where there are none."""
    is_literal = (_depths(test.inputs) == 1) & (test.inputs >= FIRST_DIGIT)

    arity = is_literal.sum(axis=1)
    has_literals = arity > 0
    guesses = by_root.copy()
    guesses[has_literals] = apply(
        kind=test.inputs[has_literals, 0].astype(int) - FIRST_OPERATOR,
        arity=arity[has_literals],
        arguments=test.inputs[is_literal] - FIRST_DIGIT,
    )
    return guesses


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
