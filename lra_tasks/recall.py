"""Recall: keys with a value each, then some of the keys; which were their values?

`k3 v7 d1 k0 v2 d0 k3` is 7: the token after the first k3. The tokens d are distractors.
Multi-query associative recall, Arora et al. 2023 (arXiv:2312.04927). All pairs stand in
front of all queries, and keys, values and distractors have different ids.

Letters: R sequences drawn at once, L tokens, P pairs, Q queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks.errors import DataError
from lra_tasks.split import NO_LABEL, Split, check_length, pad
from lra_tasks.task import Task

# The number of sequences drawn at once. The data of a seed depend on this number:
# changing it changes them.
ROWS_PER_ROUND = 1024
# The id 0 is the padding of shorter texts.
FIRST_KEY = 1


@dataclass(frozen=True, kw_only=True)
class Recall(Task):
    """Sequences of exactly `max_length` tokens, all drawn from one seed.

    The `num_pairs` keys of a sequence are different ones of `num_keys`, and each is
    followed by one of `num_values`. Each of the `num_queries` queries is one of these
    keys. All choices are uniform and independent. Distractors, of `num_distractors`
    ids, fill the rest: they stand at random places in front of pairs and queries, never
    within a pair, and the last token is a query.

    With one query, the sequence has one label. With several, each query's token has a
    label.
    """

    name: ClassVar[str] = "recall"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Keys and values, then keys; the labels are values."
    homepage: ClassVar[str] = "https://arxiv.org/abs/2312.04927"
    citation: ClassVar[str] = "Arora et al., Zoology, ICLR 2024"
    padded: ClassVar[bool] = False
    max_length: int = 256
    num_pairs: int = 64
    num_keys: int = 128
    num_values: int = 128
    num_distractors: int = 16
    num_queries: int = 64
    num_train: int = 64_000
    num_validation: int = 2_000
    num_test: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = (self.num_train, self.num_validation, self.num_test)
        self.require(min(counts) >= 1, f"each split needs an example, not {counts}")
        self.require(self.num_pairs >= 1, "num_pairs must be at least 1")
        self.require(self.num_queries >= 1, "num_queries must be at least 1")
        self.require(self.num_values >= 2, "num_values must be at least 2")
        self.require(self.num_distractors >= 1, "num_distractors must be at least 1")
        self.require(
            self.num_pairs <= self.num_keys,
            f"each pair has a key of its own: num_pairs={self.num_pairs} "
            f"must be at most num_keys={self.num_keys}",
        )
        num_tokens = 2 * self.num_pairs + self.num_queries
        self.require(
            num_tokens <= self.max_length,
            f"num_pairs={self.num_pairs} and num_queries={self.num_queries} need "
            f"{num_tokens:,} tokens, over max_length={self.max_length}",
        )
        self.require(
            self.vocab_size <= 2**16,
            "num_keys, num_values and num_distractors make "
            f"{self.vocab_size:,} ids with the padding: at most 65,536",
        )
        self.require(not self.source_dir, "is drawn from a seed: leave out source_dir")

    @property
    def vocab_size(self) -> int:
        return self.first_distractor + self.num_distractors

    @property
    def num_classes(self) -> int:
        return self.num_values

    @property
    def num_labels(self) -> int:
        return self.num_queries if self.num_queries > 1 else 0

    @property
    def label_names(self) -> list[str]:
        return [f"v{i}" for i in range(self.num_values)]

    @property
    def first_value(self) -> int:
        """The id of the value whose label is 0."""
        return FIRST_KEY + self.num_keys

    @property
    def first_distractor(self) -> int:
        return self.first_value + self.num_values

    @property
    def token_ids(self) -> str:
        return (
            f"0 padding, keys from {FIRST_KEY}, values from {self.first_value}, "
            f"distractors from {self.first_distractor}"
        )

    @property
    def words(self) -> list[str]:
        """The names of all ids, in their order: <pad> k0 … v0 … d0 …."""
        keys = [f"k{i}" for i in range(self.num_keys)]
        distractors = [f"d{i}" for i in range(self.num_distractors)]
        return ["<pad>", *keys, *self.label_names, *distractors]

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`, of words as in "k3 v7 d0 k3"; no word is <pad>."""
        ids = {word: i for i, word in enumerate(self.words) if i}
        rows = []
        for number, text in enumerate(texts, start=1):
            words = text.split()
            unknown = sorted(set(words) - set(ids))
            if unknown:
                raise DataError(
                    f"{self.name}: text {number}: {unknown[0]!r} is none of k0 to "
                    f"k{self.num_keys - 1}, v0 to v{self.num_values - 1}, d0 to "
                    f"d{self.num_distractors - 1}"
                )
            check_length(f"{self.name}: text {number}", len(words), self.max_length)
            rows.append(np.array([ids[word] for word in words], self.dtype))
        return pad(rows, self.max_length, self.dtype)

    def decode(self, tokens: np.ndarray) -> str:
        words = self.words
        return " ".join(words[token] for token in tokens)

    def make_splits(self, source: Path) -> dict[str, Split]:
        sizes = (self.num_train, self.num_validation, self.num_test)
        return generate(self, sum(sizes)).cut(sizes)

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds the rule that answers the most frequent value of the sequence.

        Of several the one with the smallest id.
        """
        values = test.inputs.astype(np.int64) - self.first_value
        row, column = np.nonzero((values >= 0) & (values < self.num_values))
        counts = np.zeros((test.num_examples, self.num_values), np.int64)
        np.add.at(counts, (row, values[row, column]), 1)
        most_frequent = counts.argmax(axis=1)

        labels = test.labels.reshape(test.num_examples, -1)
        is_label = labels != NO_LABEL
        return {
            **super().floors(train, test),
            "most frequent value present": float(
                np.mean((labels == most_frequent[:, None])[is_label])
            ),
        }


def generate(task: Recall, num_examples: int) -> Split:
    """Draws sequences, as the task says: a function of its arguments alone.

    The labels are int32 [n] of one query; of several [n, L], with NO_LABEL where a
    token is no query.
    """
    rng = np.random.Generator(np.random.Philox(task.seed))
    inputs = np.empty((num_examples, task.max_length), task.dtype)
    labels = np.empty((num_examples, task.max_length), np.int32)
    for start in range(0, num_examples, ROWS_PER_ROUND):
        count = min(ROWS_PER_ROUND, num_examples - start)
        rows = slice(start, start + count)
        round_inputs, round_labels = _draw(rng, task)
        inputs[rows] = round_inputs[:count]
        labels[rows] = round_labels[:count]

    lengths = np.full(num_examples, task.max_length, np.int32)
    if task.num_queries == 1:
        labels = labels[:, -1]
    return Split(inputs, lengths, labels)


def _draw(rng: np.random.Generator, task: Recall) -> tuple[np.ndarray, np.ndarray]:
    """Draws ROWS_PER_ROUND sequences: ids [R, L] and labels [R, L]."""
    num_rows = ROWS_PER_ROUND
    length = task.max_length
    num_pairs = task.num_pairs
    num_queries = task.num_queries
    keys = _choose(rng, task.num_keys, num_pairs)  # [R, P], different in a row
    values = rng.integers(task.num_values, size=(num_rows, num_pairs))
    queried = rng.integers(num_pairs, size=(num_rows, num_queries))
    distractors = rng.integers(task.num_distractors, size=(num_rows, length))

    # Put pairs, queries and distractors in a line, a pair as one item. The last place
    # is a query's; the others are drawn. A pair has two tokens, so an item's position
    # is its place plus the number of pairs in front of it.
    num_places = length - num_pairs
    places = np.full((num_rows, num_pairs + num_queries), num_places - 1)
    places[:, :-1] = _choose(rng, num_places - 1, num_pairs + num_queries - 1)
    places.sort(axis=1)
    positions = places + np.minimum(np.arange(num_pairs + num_queries), num_pairs)
    key_positions = positions[:, :num_pairs]
    query_positions = positions[:, num_pairs:]

    inputs = task.first_distractor + distractors
    queries = np.take_along_axis(keys, queried, axis=1)
    np.put_along_axis(inputs, key_positions, FIRST_KEY + keys, axis=1)
    np.put_along_axis(inputs, key_positions + 1, task.first_value + values, axis=1)
    np.put_along_axis(inputs, query_positions, FIRST_KEY + queries, axis=1)

    labels = np.full((num_rows, length), NO_LABEL)
    answers = np.take_along_axis(values, queried, axis=1)
    np.put_along_axis(labels, query_positions, answers, axis=1)
    return inputs, labels


def _choose(rng: np.random.Generator, num_items: int, num_chosen: int) -> np.ndarray:
    """Different numbers below `num_items` in random order, [R, num_chosen]."""
    order = rng.random((ROWS_PER_ROUND, num_items)).argsort(axis=1, kind="stable")
    return order[:, :num_chosen]
