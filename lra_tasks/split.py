"""Split: the examples of one split as plain arrays, and disjoint splits."""

import functools
import hashlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lra_tasks.errors import DataError

SPLITS: tuple[str, ...] = ("train", "validation", "test")
NO_LABEL = -1  # of a token, in a task that labels some of its tokens


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    `pairs` is None where example i is row i; in a task of two inputs it names the two
    rows of each example, so that a document is stored once. `inputs` may stay on disk
    (`rows_on_disk.Rows`): then it is indexed by rows only.
    """

    inputs: Any  # uint8 or uint16 [num_rows, L], 0 behind a row's length
    lengths: np.ndarray  # int32 [num_rows]
    labels: np.ndarray  # int32 [num_examples], or of tokens [num_examples, L]
    pairs: np.ndarray | None = None  # int32 [num_examples, 2]

    @classmethod
    def of_pictures(cls, pictures: np.ndarray, labels: Any) -> "Split":
        """Every pixel of pictures uint8 `[n, ...]` is a token."""
        inputs = pictures.reshape(len(pictures), -1)
        lengths = np.full(len(inputs), inputs.shape[1], np.int32)
        return cls(inputs, lengths, np.array(labels, np.int32))

    @property
    def num_examples(self) -> int:
        return len(self.labels)

    def take(self, examples: np.ndarray | slice) -> "Split":
        """The examples with these indices, or a mask's; documents all stay."""
        labels = self.labels[examples]
        if self.pairs is not None:
            return Split(self.inputs, self.lengths, labels, self.pairs[examples])
        return Split(self.inputs[examples], self.lengths[examples], labels)

    def followed_by(self, other: "Split") -> "Split":
        """The examples of this split, then those of another; not of pairs."""
        return Split(
            np.concatenate([self.inputs, other.inputs]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.labels, other.labels]),
        )

    def cut(self, sizes: Iterable[int]) -> dict[str, "Split"]:
        """The first examples as train, the next as validation, then test."""
        ends = [0, *itertools.accumulate(sizes)]
        parts = (self.take(slice(*between)) for between in itertools.pairwise(ends))
        return dict(zip(SPLITS, parts, strict=True))

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yields the tokens of each example, or of its two inputs, and its label.

        Of labelled tokens it yields the list of all labels in place of the label.
        """
        for i, label in enumerate(self.labels.tolist()):
            rows = [i] if self.pairs is None else self.pairs[i]
            tokens = [self.inputs[row][: self.lengths[row]] for row in rows]
            yield (tokens if self.pairs is not None else tokens[0]), label

    @functools.cached_property
    def content_hash(self) -> str:
        """sha256 (hex) of shapes, dtypes and values."""
        digest = hashlib.sha256()
        for array in (self.inputs, self.lengths, self.labels, self.pairs):
            if array is None:
                digest.update(b"none")
                continue
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            for start in range(0, len(array), 2**14):  # rows may be on disk
                digest.update(np.ascontiguousarray(array[start : start + 2**14]).data)
        return digest.hexdigest()

    def example_hashes(self) -> list[bytes]:
        """A hash of each example's tokens, without its label or the order of a pair."""
        rows = [
            hashlib.blake2b(row[:length].tobytes(), digest_size=16).digest()
            for row, length in zip(self.inputs, self.lengths, strict=True)
        ]
        if self.pairs is None:
            return rows
        return [b"".join(sorted((rows[a], rows[b]))) for a, b in self.pairs]


def pad(rows: Collection[Any], width: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids as an array `[n, width]` of the dtype and their lengths `[n]`."""
    inputs = np.zeros((len(rows), width), dtype)
    lengths = np.zeros(len(rows), np.int32)
    for number, row in enumerate(rows):
        inputs[number, : len(row)], lengths[number] = row, len(row)
    return inputs, lengths


def split_off(train: Split, seed: int, fraction: float = 0.1) -> tuple[Split, Split]:
    """Train and validation, a fraction of each class drawn; both keep their order."""
    rng = np.random.default_rng(seed)
    drawn = np.zeros(train.num_examples, bool)
    for label in np.unique(train.labels):
        members = np.flatnonzero(train.labels == label)
        drawn[rng.permutation(members)[: round(fraction * len(members))]] = True
    return train.take(~drawn), train.take(drawn)


def remove_overlap(name: str, splits: Mapping[str, Split]) -> dict[str, Split]:
    """Makes splits disjoint: test wins over validation, and both over train.

    The test splits stay as published; a line on stderr says how many examples were
    removed from the others. Examples with equal hashes are equal. DataError if no
    example of a split is left.
    """
    seen: set[bytes] = set()
    parts = dict(splits)
    tests = [split_name for split_name in splits if split_name.startswith("test")]
    for split_name in (*tests, "validation", "train"):
        hashes = splits[split_name].example_hashes()
        new = np.array([each not in seen for each in hashes], bool)
        seen.update(hashes)
        if split_name not in tests and not new.all():
            say_left_out(name, split_name, int(np.sum(~new)))
            parts[split_name] = splits[split_name].take(new)
        if not parts[split_name].num_examples:
            raise DataError(f"{name}: no example of {split_name} is left: give more")
    return parts


def say_left_out(name: str, split_name: str, count: int) -> None:
    message = f"{name}: {count:,} examples left out of {split_name}: repeated"
    print(f"{message} in a split kept for evaluation", file=sys.stderr)
