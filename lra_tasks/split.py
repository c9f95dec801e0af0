"""Split: the examples of one split as plain arrays; how they are made and checked."""

import functools
import hashlib
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lra_tasks.errors import DataError

SPLITS: tuple[str, ...] = ("train", "validation", "test")
# A token without a label, in a task that labels some of its tokens.
NO_LABEL = -1
ROWS_AT_A_TIME = 2**14

# A Split, or an iterator of (tokens, label) for data that are made one by one.
Examples = Iterable[tuple[Any, Any]]


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    Example i is row i of the inputs. In a task of two inputs `pairs` names the two rows
    of each example, so that a document is stored once.

    Attributes:
      inputs: token ids, uint8 or uint16 `[num_rows, L]`, 0 behind a row's length; they
        may stay on disk (`storage.Rows`) and are then indexed by rows only.
      lengths: int32 `[num_rows]`.
      labels: int32 `[num_examples]`, or of tokens `[num_examples, L]`.
      pairs: int32 `[num_examples, 2]`, or None.
    """

    inputs: Any
    lengths: np.ndarray
    labels: np.ndarray
    pairs: np.ndarray | None = None

    @classmethod
    def from_pictures(cls, pictures: np.ndarray, labels: Any) -> "Split":
        """Takes every pixel of pictures, uint8 `[n, ...]`, as a token."""
        num_pixels = math.prod(pictures.shape[1:])
        inputs = pictures.reshape(len(pictures), num_pixels)
        lengths = np.full(len(inputs), num_pixels, np.int32)
        return cls(inputs, lengths, np.array(labels, np.int32))

    @property
    def num_examples(self) -> int:
        return len(self.labels)

    def take(self, examples: np.ndarray | slice) -> "Split":
        """Returns the examples with these indices, or of a mask.

        In a task of pairs all documents stay.
        """
        labels = self.labels[examples]
        if self.pairs is not None:
            return Split(self.inputs, self.lengths, labels, self.pairs[examples])
        return Split(self.inputs[examples], self.lengths[examples], labels)

    def concatenate(self, other: "Split") -> "Split":
        """Returns the examples of this split, then those of another; not of pairs."""
        return Split(
            np.concatenate([self.inputs, other.inputs]),
            np.concatenate([self.lengths, other.lengths]),
            np.concatenate([self.labels, other.labels]),
        )

    def cut(self, sizes: Iterable[int]) -> dict[str, "Split"]:
        """Returns the first examples as train, the next as validation, then test.

        Args:
          sizes: the number of examples of each of the three.
        """
        parts = {}
        start = 0
        for name, size in zip(SPLITS, sizes, strict=True):
            parts[name] = self.take(slice(start, start + size))
            start += size
        return parts

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Yields the tokens of each example, or of its two inputs, and its label.

        Where tokens are labelled, it yields the labels of the valid ones instead.
        """
        for i, label in enumerate(self.labels):
            if self.pairs is not None:
                yield [self._tokens(row) for row in self.pairs[i]], label
            elif label.ndim:
                yield self._tokens(i), label[: self.lengths[i]]
            else:
                yield self._tokens(i), label

    def _tokens(self, row: int) -> np.ndarray:
        return self.inputs[row][: self.lengths[row]]

    @functools.cached_property
    def content_hash(self) -> str:
        """sha256 (hex) of shapes, dtypes and values."""
        digest = hashlib.sha256()
        for array in (self.inputs, self.lengths, self.labels, self.pairs):
            if array is None:
                digest.update(b"none")
                continue
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            for start in range(0, len(array), ROWS_AT_A_TIME):  # They may be on disk.
                rows = array[start : start + ROWS_AT_A_TIME]
                digest.update(np.ascontiguousarray(rows).data)
        return digest.hexdigest()

    def example_hashes(self) -> list[bytes]:
        """Hashes each example's tokens, without its label or the order of a pair."""
        row_hashes = [
            hashlib.blake2b(row[:length].tobytes(), digest_size=16).digest()
            for row, length in zip(self.inputs, self.lengths, strict=True)
        ]
        if self.pairs is None:
            return row_hashes
        return [
            b"".join(sorted([row_hashes[first], row_hashes[second]]))
            for first, second in self.pairs
        ]


def pad(rows: Collection[Any], width: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Fills rows up with zeros.

    Args:
      rows: n sequences of ids, none longer than `width`.
      width: the number of columns.
      dtype: the type of the result.

    Returns:
      The rows `[n, width]` and their lengths `[n]`.
    """
    inputs = np.zeros((len(rows), width), dtype)
    lengths = np.zeros(len(rows), np.int32)
    for number, row in enumerate(rows):
        inputs[number, : len(row)] = row
        lengths[number] = len(row)
    return inputs, lengths


def check_length(name: str, num_tokens: int, max_length: int) -> None:
    """Checks that a row has at least one token, and no more than columns.

    Args:
      name: the name of the row, for messages.
      num_tokens: the number of tokens.
      max_length: the number of columns.

    Raises:
      DataError: if there are none or too many.
    """
    if not num_tokens:
        raise DataError(f"{name} is empty: give it 1 to max_length={max_length} tokens")
    if num_tokens > max_length:
        raise DataError(
            f"{name}: {num_tokens:,} tokens are more than max_length={max_length}"
        )


def split_off(train: Split, seed: int, fraction: float = 0.1) -> tuple[Split, Split]:
    """Draws examples of train to be held out; both parts keep their order.

    Args:
      train: the examples to draw from.
      seed: decides which are drawn.
      fraction: the share of each class that is drawn, rounded to whole examples.

    Returns:
      The rest of train, and what was drawn.
    """
    classes = train.labels
    if classes.ndim == 2:  # An example whose tokens have labels has no class.
        classes = np.zeros(train.num_examples, int)

    rng = np.random.default_rng(seed)
    is_drawn = np.zeros(train.num_examples, bool)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        num_drawn = round(fraction * len(members))
        is_drawn[rng.permutation(members)[:num_drawn]] = True
    return train.take(~is_drawn), train.take(is_drawn)


def remove_overlap(name: str, splits: Mapping[str, Split]) -> dict[str, Split]:
    """Makes splits disjoint: test wins over validation, and both over train.

    The test splits stay as published; a line on stderr says how many examples were
    removed from the others. Examples with equal hashes are equal.

    Args:
      name: the task's name, for messages.
      splits: train, validation and one or more test splits.

    Returns:
      The disjoint splits, in the same order.

    Raises:
      DataError: if no example of a split is left.
    """
    seen_hashes: set[bytes] = set()
    parts = dict(splits)
    test_names = [split_name for split_name in splits if split_name.startswith("test")]
    for split_name in (*test_names, "validation", "train"):
        hashes = splits[split_name].example_hashes()
        is_new = np.array([example not in seen_hashes for example in hashes], bool)
        seen_hashes.update(hashes)
        if split_name not in test_names and not is_new.all():
            report_left_out(name, split_name, int(np.sum(~is_new)))
            parts[split_name] = splits[split_name].take(is_new)
        if not parts[split_name].num_examples:
            raise DataError(f"{name}: no example of {split_name} is left: give more")
    return parts


def report_left_out(name: str, split_name: str, count: int) -> None:
    """Prints how many examples of a split are repeated in one for evaluation."""
    examples = "1 example" if count == 1 else f"{count:,} examples"
    print(
        f"{name}: {examples} left out of {split_name}: repeated in a split kept for "
        "evaluation",
        file=sys.stderr,
    )


def report_other_size(source: object, count: int, num_released: int, noun: str) -> None:
    """Prints that a source has more or fewer examples than the published one.

    Args:
      source: what was read, for the message.
      count: the number of its examples.
      num_released: the number of those that are published.
      noun: what an example is, in the plural.
    """
    if count != num_released:
        print(
            f"{source}: {count:,} {noun}, the release has {num_released:,}: results "
            "are not comparable",
            file=sys.stderr,
        )
