"""Small recall tasks, and a slow writer and a reader of their sequences."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lra_tasks.recall import NO_LABEL, ROWS_PER_ROUND, Recall

SMALL = Recall(
    max_length=23,
    num_pairs=4,
    num_keys=9,
    num_values=5,
    num_distractors=3,
    num_queries=6,
    num_train=997,
    num_validation=101,
    num_test=211,
)
ONE = replace(SMALL, num_queries=1)


def smallest(draws: list[float], count: int) -> list[int]:
    """The indices of the smallest draws, the smallest first."""
    by_draw = sorted(range(len(draws)), key=draws.__getitem__)
    return by_draw[:count]


def draw_words(task: Recall, num_rows: int) -> Iterator[list[str]]:
    """Yields the sequences that generate draws, built word by word."""
    # A pair is one place of two words; a query or a distractor is a place of one.
    num_places = task.max_length - task.num_pairs

    # The draws come in the order in which generate makes them, for a whole round.
    rng = np.random.Generator(np.random.Philox(task.seed))
    num_draws = ROWS_PER_ROUND
    keys = rng.random((num_draws, task.num_keys)).tolist()
    values = rng.integers(task.num_values, size=(num_draws, task.num_pairs))
    queried_pairs = rng.integers(task.num_pairs, size=(num_draws, task.num_queries))
    distractors = rng.integers(task.num_distractors, size=(num_draws, task.max_length))
    places = rng.random((num_draws, num_places - 1)).tolist()

    for row in range(num_rows):
        row_keys = smallest(keys[row], task.num_pairs)
        # The last place is a query's.
        num_drawn_places = task.num_pairs + task.num_queries - 1
        row_places = set(smallest(places[row], num_drawn_places))
        row_places.add(num_places - 1)

        pairs_and_queries = []
        for key, value in zip(row_keys, values[row], strict=True):
            pairs_and_queries.append([f"k{key}", f"v{value}"])
        for pair in queried_pairs[row]:
            pairs_and_queries.append([f"k{row_keys[pair]}"])

        words: list[str] = []
        for place in range(num_places):
            if place in row_places:
                words += pairs_and_queries.pop(0)
            else:
                words.append(f"d{distractors[row, len(words)]}")
        yield words


def read_labels(words: list[str]) -> list[int]:
    """The label of each word.

    A key that has occurred before has the value behind its first occurrence. Other
    words have NO_LABEL.
    """
    value_by_key: dict[str, int] = {}
    labels = []
    for i, word in enumerate(words):
        labels.append(value_by_key.get(word, NO_LABEL))
        if word.startswith("k") and word not in value_by_key:
            value_by_key[word] = int(words[i + 1].removeprefix("v"))
    return labels
