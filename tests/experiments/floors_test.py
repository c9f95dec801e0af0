"""Floors of hidden tokens and of labels, against counting by hand."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lra_tasks.split import Split
from lra_tasks.task import get_task
from nystromformer.experiments import floors
from nystromformer.experiments.floors import (
    denoising_floors,
    label_floors,
    mlm_floors,
    mlm_sop_floors,
    position_floors,
)

V = 9
TASK: Any = SimpleNamespace(vocab_size=V, special_tokens=(0, 1, 2))


def make_split(seed, rows=300):
    rng = np.random.default_rng(seed)
    inputs = rng.binomial(V - 1, 0.6, (rows, 12)).astype(np.uint16)
    lengths, labels = rng.integers(6, 13, rows), rng.integers(0, 2, rows)
    return Split(inputs, lengths.astype(np.int32), labels.astype(np.int32))


def tokens_of(split):
    rows = zip(split.inputs.tolist(), split.lengths, strict=True)
    return [token for row, n in rows for token in row[:n] if token > 2]


@pytest.mark.parametrize("part", [1, 3])
def test_mlm_floors_agrees_with_counting_by_hand(monkeypatch, part):
    splits = {"train": make_split(0, 300 * part), "test": make_split(1)}
    monkeypatch.setattr(floors, "MAX_TOKENS", splits["test"].inputs.size)
    found = mlm_floors(TASK, splits)
    counts = Counter(range(3, V))
    counts.update(tokens_of(splits["train"].take(slice(None, None, part))))
    [(usual, _)], test = counts.most_common(1), tokens_of(splits["test"])
    losses = [-np.log(counts[token] / counts.total()) for token in test]
    wanted = {"loss": np.mean(losses), "mlm_accuracy": np.mean(np.array(test) == usual)}
    for metric, value in wanted.items():
        assert found[metric] == {"frequency of each token": pytest.approx(value)}


def test_mlm_sop_floors_has_the_majority_of_train():
    splits = {"train": make_split(0), "test": make_split(1)}
    splits["train"].labels[:] = np.arange(300) < 200
    found = mlm_sop_floors(TASK, splits)["sop_accuracy"]
    assert found == {"majority class": splits["test"].labels.mean()}


def test_label_floors_fit_rules_on_train_and_score_them_on_test():
    """Accuracy by the task's own rules; and the F1 of always saying 1."""
    train, test = (
        Split.of_pictures(np.zeros((5, 1), np.uint8), labels)
        for labels in ([0, 0, 0, 0, 1], [1, 1, 1, 0, 0])
    )
    splits = {"train": train, "validation": train.take(slice(4, 5)), "test": test}
    assert label_floors(get_task("text"), splits) == {
        "accuracy": {"majority class": 2 / 5},
        "f1": {"class 1 always": pytest.approx(2 * 0.6 * 1 / 1.6)},
    }


def test_position_floors_fit_rules_on_train_and_score_them_on_test():
    """Of labels of tokens: 2, the majority of train, is a third of test's."""
    task = get_task("recall", max_length=8, num_pairs=2, num_queries=3)
    train, test = (
        Split(
            np.zeros((1, 8), np.uint16),
            np.full(1, 8, np.int32),
            np.array([[-1] * 5 + labels], np.int32),
        )
        for labels in ([2, 2, 1], [1, 2, 1])
    )
    found = position_floors(task, {"train": train, "test": test})
    assert found["accuracy"]["majority class"] == pytest.approx(1 / 3)


def test_label_floors_has_the_f1_of_always_saying_one():
    split = SimpleNamespace(labels=np.array([1, 1, 1, 0, 0]))
    task: Any = SimpleNamespace(floors=lambda train, test: {})
    found = label_floors(task, {"train": split, "test": split})
    assert found["f1"] == {"class 1 always": pytest.approx(2 * 0.6 * 1 / 1.6)}


def test_denoising_floors_are_those_of_the_label_and_of_tokens():
    splits = {"train": make_split(0), "test": make_split(1)}
    task: Any = SimpleNamespace(**vars(TASK), floors=lambda train, test: {"rule": 0.5})
    found = denoising_floors(task, splits)
    tokens = mlm_floors(TASK, splits)["mlm_accuracy"]
    assert found == {"accuracy": {"rule": 0.5}, "denoising_accuracy": tokens}
