"""Floors of masked tokens and of labels, against counting by hand."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lra_tasks.split import Split
from lra_tasks.task import get_task
from nystromformer.experiments import objectives
from nystromformer.experiments.objectives import (
    denoising_floors,
    label_floors,
    mlm_floors,
    mlm_sop_floors,
    position_floors,
)

VOCAB_SIZE = 9
TASK: Any = SimpleNamespace(vocab_size=VOCAB_SIZE, special_tokens=(0, 1, 2))


def make_split(seed, num_rows=300):
    rng = np.random.default_rng(seed)
    inputs = rng.binomial(VOCAB_SIZE - 1, 0.6, (num_rows, 12))
    lengths = rng.integers(6, 13, num_rows)
    labels = rng.integers(0, 2, num_rows)
    return Split(
        inputs.astype(np.uint16), lengths.astype(np.int32), labels.astype(np.int32)
    )


@pytest.fixture
def splits():
    return {"train": make_split(0), "test": make_split(1)}


def ordinary_tokens(split):
    """The valid tokens that are not special, one after another."""
    tokens = []
    for row, length in zip(split.inputs.tolist(), split.lengths, strict=True):
        tokens.extend(token for token in row[:length] if token > 2)
    return tokens


@pytest.mark.parametrize("num_parts", [1, 3])
def test_mlm_floors_agrees_with_counting_by_hand(monkeypatch, num_parts):
    """In a train split that is too large, every third row is counted."""
    train = make_split(0, 300 * num_parts)
    test = make_split(1)
    monkeypatch.setattr(objectives, "MAX_COUNTED_TOKENS", test.inputs.size)
    result = mlm_floors(TASK, {"train": train, "test": test})

    # Each ordinary token begins with one: this is add-one smoothing.
    counts = Counter(range(3, VOCAB_SIZE))
    counts.update(ordinary_tokens(train.take(slice(None, None, num_parts))))
    most_frequent_token = max(counts, key=lambda token: counts[token])
    test_tokens = ordinary_tokens(test)
    losses = [-np.log(counts[token] / counts.total()) for token in test_tokens]
    accuracy = np.mean(np.array(test_tokens) == most_frequent_token)
    rule = "frequency of each token"
    assert result["loss"] == {rule: pytest.approx(np.mean(losses))}
    assert result["mlm_accuracy"] == {rule: pytest.approx(accuracy)}


def test_mlm_sop_floors_has_the_majority_of_train(splits):
    splits["train"].labels[:] = np.arange(300) < 200
    accuracy = mlm_sop_floors(TASK, splits)["sop_accuracy"]
    assert accuracy == {"majority class": splits["test"].labels.mean()}


def test_label_floors_fit_rules_on_train_and_score_them_on_test():
    """The accuracy is by the task's own rules. F1 is that of always saying 1."""
    pictures = np.zeros((5, 1), np.uint8)
    train = Split.from_pictures(pictures, [0, 0, 0, 0, 1])
    test = Split.from_pictures(pictures, [1, 1, 1, 0, 0])
    splits = {"train": train, "validation": train.take(slice(4, 5)), "test": test}
    assert label_floors(get_task("text"), splits) == {
        "accuracy": {"majority class": 2 / 5},
        "f1": {"class 1 always": pytest.approx(2 * 0.6 * 1 / 1.6)},
    }


def recall_split(labels):
    """One sequence of eight tokens, of which the last three have labels."""
    return Split(
        inputs=np.zeros((1, 8), np.uint16),
        lengths=np.full(1, 8, np.int32),
        labels=np.array([[-1] * 5 + labels], np.int32),
    )


def test_position_floors_fit_rules_on_train_and_score_them_on_test():
    """The label 2, the majority of train, is a third of test's."""
    task = get_task("recall", max_length=8, num_pairs=2, num_queries=3)
    splits = {"train": recall_split([2, 2, 1]), "test": recall_split([1, 2, 1])}
    accuracy = position_floors(task, splits)["accuracy"]
    assert accuracy["majority class"] == pytest.approx(1 / 3)


def test_denoising_floors_are_those_of_the_label_and_of_tokens(splits):
    task: Any = SimpleNamespace(**vars(TASK), floors=lambda train, test: {"rule": 0.5})
    assert denoising_floors(task, splits) == {
        "accuracy": {"rule": 0.5},
        "denoising_accuracy": mlm_floors(TASK, splits)["mlm_accuracy"],
    }
