"""ListOps: nested lists of operators over digits; the label is the value.

`[MAX 4 [MED 1 9 2 ] 0 ]` is 4; MED is the median, truncated, and SM the sum modulo
10. Nangia & Bowman 2018 (arXiv:1804.06028), in the lengths of Long Range Arena (Tay et
al. 2021, arXiv:2011.04006). The expressions are drawn here, many at once, level by
level; the released files are read when `source_dir` names their folder.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from tqdm import tqdm

from lra_tasks.archives import UNPACKED, find
from lra_tasks.base import Task
from lra_tasks.errors import DataError
from lra_tasks.split import Split, pad
from lra_tasks.tables import read_table

# The index is the token id. Written out: a checkpoint relies on the order.
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
DIGITS = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
VOCABULARY = ("<pad>", *OPERATORS, "]", *DIGITS)
TOKEN_ID = {token: index for index, token in enumerate(VOCABULARY) if index}
FIRST_OPERATOR, CLOSE, FIRST_DIGIT = (TOKEN_ID[token] for token in ("[MIN", "]", "0"))

TREES_PER_ROUND = 2048  # part of what a seed means: changing it changes the data
OPERATOR_SHARE = 0.25  # of the nodes that may be one
ROUNDS_WITHOUT_NEWS = 100  # then there are probably no other trees
RELEASED = {"train": "train", "validation": "val", "test": "test"}  # basic_*.tsv


class _Level(NamedTuple):
    """The operators at one depth of many trees, in the order of their parents."""

    tree: np.ndarray  # [operators], which tree it belongs to; ascending
    arity: np.ndarray  # [operators]
    nested: np.ndarray  # [sum of arities], bool: this argument is an operator


def _grow(
    rng: np.random.Generator, max_tokens: int, max_depth: int, max_args: int
) -> tuple[list[_Level], np.ndarray]:
    """Draws the shapes of TREES_PER_ROUND trees; also their lengths `[trees]`.

    The length, 1 + Σ over operators of (1 + arity), depends on the shape alone, so the
    operators' kinds and the digits, independent of it, are drawn for kept trees only.
    Every root is an operator: a root that is a digit has length 1 and is never kept.
    A tree beyond `max_tokens` stops growing: it could only get longer.
    """
    length = np.ones(TREES_PER_ROUND, np.int64)
    tree = np.arange(TREES_PER_ROUND)
    levels = []
    for depth in range(1, max_depth):
        arity = rng.integers(2, max_args, len(tree), np.uint8, endpoint=True)
        length += np.bincount(tree, 1 + arity, TREES_PER_ROUND).astype(np.int64)
        fits = length[tree] <= max_tokens
        tree, arity = tree[fits], arity[fits]
        nested = rng.random(arity.sum(dtype=np.int64), np.float32)
        nested = nested < (OPERATOR_SHARE if depth + 1 < max_depth else 0)
        levels.append(_Level(tree, arity, nested))
        tree = np.repeat(tree, arity)[nested]
    return levels, length


def _keep(levels: list[_Level], kept: np.ndarray) -> Iterator[_Level]:
    """The levels of the trees in `kept` (bool `[trees]`), renumbered from 0."""
    number = np.cumsum(kept) - 1
    for tree, arity, nested in levels:
        stays = kept[tree]
        yield _Level(number[tree[stays]], arity[stays], nested[np.repeat(stays, arity)])


def apply(kind: np.ndarray, arity: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """Values of many OPERATORS `[n]`, their arguments `[arity.sum()]` in a row."""
    table = np.full((len(arity), arity.max(initial=1)), 255, np.uint8)
    present = np.arange(table.shape[1]) < arity[:, None]
    table[present] = arguments
    table_sum = np.sum(table, axis=1, where=present, dtype=np.int64)
    table.sort(axis=1)  # 255 goes behind every digit
    row = np.arange(len(table))
    median = (table[row, (arity - 1) // 2] + table[row, arity // 2]) // 2
    values = [table[:, 0], table[row, arity - 1], median, table_sum % 10]
    return np.choose(kind, values).astype(np.uint8)  # in the order of OPERATORS


def _write(
    rng: np.random.Generator, levels: list[_Level], inputs: np.ndarray
) -> np.ndarray:
    """Fills `inputs` (zeros, [trees, L]) with the trees' tokens; returns the labels."""
    size = np.empty(0, np.int64)  # tokens of each operator of the level below
    value = np.empty(0, np.uint8)
    layout = []
    for _, arity, nested in reversed(levels):
        kind = rng.integers(len(OPERATORS), size=len(arity), dtype=np.uint8)
        values = rng.integers(10, size=len(nested), dtype=np.uint8)
        sizes = np.ones(len(nested), np.int64)
        values[nested], sizes[nested] = value, size
        before = np.cumsum(sizes) - sizes  # tokens in front, over the whole level
        first = np.cumsum(arity, dtype=np.int64) - arity  # each one's first argument
        size = 2 + np.add.reduceat(sizes, first) if len(first) else first
        value = apply(kind, arity, values)
        layout.append((kind, values, size, before - np.repeat(before[first], arity)))
    flat = inputs.reshape(-1)
    start = np.arange(len(inputs)) * inputs.shape[1]
    for (_, arity, nested), (kind, values, size, offset) in zip(
        levels, reversed(layout), strict=True
    ):
        flat[start] = FIRST_OPERATOR + kind
        flat[start + size - 1] = CLOSE
        position = np.repeat(start + 1, arity) + offset
        flat[position] = FIRST_DIGIT + values  # an operator's place is written next
        start = position[nested]
    return value


def generate(task: "ListOps", num_examples: int) -> Split:
    """Draws distinct expressions of at most `max_length` tokens, as the task says.

    A function of its arguments, the same on every machine.
    """
    inputs = np.zeros((num_examples, task.max_length), np.uint8)
    lengths, labels = np.zeros((2, num_examples), np.int32)
    min_tokens, max_tokens = task.min_tokens, min(task.max_tokens, task.max_length)
    rng = np.random.Generator(np.random.Philox(task.seed))
    seen: set[bytes] = set()
    idle_rounds = 0
    with tqdm(total=num_examples, desc="listops", disable=None, leave=False) as bar:
        while len(seen) < num_examples and idle_rounds < ROUNDS_WITHOUT_NEWS:
            before = len(seen)
            levels, sizes = _grow(rng, max_tokens, task.max_depth, task.max_args)
            kept = (min_tokens <= sizes) & (sizes <= max_tokens)
            rows = np.zeros((kept.sum(), task.max_length), np.uint8)
            values = _write(rng, list(_keep(levels, kept)), rows)
            for row, length, label in zip(rows, sizes[kept], values, strict=True):
                key = hashlib.blake2b(row[:length].tobytes(), digest_size=16).digest()
                if key not in seen and len(seen) < num_examples:
                    place = len(seen)
                    inputs[place], lengths[place], labels[place] = row, length, label
                    seen.add(key)
            bar.update(len(seen) - before)
            idle_rounds = 0 if len(seen) > before else idle_rounds + 1
    if len(seen) < num_examples:
        found = f"found only {len(seen)} of {num_examples} different expressions of"
        sizes = f"{min_tokens} to {max_tokens} tokens"
        raise DataError(f"{found} {sizes}: ask for fewer, or widen the lengths")
    return Split(inputs, lengths, labels)


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """The benchmark by default.

    From the root at depth 1: below `max_depth` a node is an operator with probability
    0.25, at `max_depth` never, else a digit. Operators, digits and 2 to `max_args`
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
        most = min(self.max_tokens, self.max_length)
        limits = f"4 (one operator, two digits) to {most}, not {self.min_tokens}"
        self.require(4 <= self.min_tokens <= most, f"min_tokens must be {limits}")

    def cache_key(self) -> dict[str, Any]:
        key = super().cache_key()
        kept = ("max_length", "source_dir") if self.source_dir else key
        return {name: key[name] for name in kept}

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; the parentheses of the released files say nothing more."""
        rows, most = [], self.max_length
        for text in texts:
            tokens = text.replace("(", " ").replace(")", " ").split()
            try:
                ids = bytes(map(TOKEN_ID.__getitem__, tokens))
            except KeyError as error:
                raise DataError(f"{error} is not a token of ListOps") from None
            wrong = f"{len(ids):,} tokens are not from 1 to max_length={most}"
            self.require(0 < len(ids) <= most, wrong)
            rows.append(np.frombuffer(ids, np.uint8))
        return pad(rows, most, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(VOCABULARY[token] for token in tokens)

    def find_source(self, data_dir: Path) -> Path:
        """The folder of the released files: `source_dir` or, of the release, in it."""
        place = super().find_source(data_dir)
        folders = ("", *(f"{above}listops-1000/" for above in UNPACKED))
        file = find([f"{folder}basic_train.tsv" for folder in folders], place)
        return file.parent if file else place

    def _read_released(self, path: Path) -> Split:
        if not path.exists():
            raise DataError(
                f"{path} is missing: source_dir must be the folder of basic_train.tsv, "
                "basic_val.tsv and basic_test.tsv, or of the unpacked LRA release"
            )
        texts, labels = read_table(path, ["Source"], "Target", DIGITS)
        try:
            return self.encode_split([text for (text,) in texts], labels)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            files = {x: source / f"basic_{name}.tsv" for x, name in RELEASED.items()}
            return {x: self._read_released(path) for x, path in files.items()}
        sizes = self.num_train, self.num_validation, self.num_test
        return generate(self, sum(sizes)).cut(sizes)  # one draw: no tree twice

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds two rules that look at the root; a root that is a digit is the answer.

        "root operator": the most frequent label of that root in `train`. "root operator
        and its literal arguments": the root applied to those of its arguments that are
        digits, and the first rule where there are none.
        """
        counts = np.zeros((self.vocab_size, self.num_classes), int)
        np.add.at(counts, (train.inputs[:, 0], train.labels), 1)
        roots = test.inputs[:, 0].astype(int)
        digits, usual = roots - FIRST_DIGIT, counts.argmax(axis=1)[roots]
        by_root = np.where(digits >= 0, digits, usual)
        opens = (test.inputs >= FIRST_OPERATOR) & (test.inputs < CLOSE)
        depth = np.cumsum(opens, axis=1) - np.cumsum(test.inputs == CLOSE, axis=1)
        literal = (depth == 1) & (test.inputs >= FIRST_DIGIT)
        has, by_literals = literal.any(axis=1), by_root.copy()
        kind, arity = roots[has] - FIRST_OPERATOR, literal.sum(axis=1)[has]
        by_literals[has] = apply(kind, arity, test.inputs[literal] - FIRST_DIGIT)
        rules = "root operator", "root operator and its literal arguments"
        right = np.equal([by_root, by_literals], test.labels).mean(axis=1).tolist()
        return super().floors(train, test) | dict(zip(rules, right, strict=True))
