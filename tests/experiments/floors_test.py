"""Floors of hidden tokens and of labels, against counting by hand."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest

from lra_tasks.split import Split
from nystromformer.experiments import floors
from nystromformer.experiments.floors import of_labels, of_tokens, of_tokens_and_order

CLS, SEP, V = 1, 2, 9
TASK = SimpleNamespace(vocab_size=V, special_tokens=(0, CLS, SEP), separator=SEP)


def make_split(seed, rows=300, length=12):
    """Each ordinary token follows from the one before, nearly always."""
    rng = np.random.default_rng(seed)
    inputs = np.zeros((rows, length), np.uint16)
    lengths = rng.integers(6, length + 1, rows).astype(np.int32)
    for row, n in zip(inputs, lengths, strict=True):
        row[0], row[1] = CLS, rng.integers(3, V)
        for i in range(2, n - 1):
            row[i] = 3 + (row[i - 1] * 2 + (rng.random() < 0.2)) % (V - 3)
        row[rng.integers(3, n - 1)] = row[n - 1] = SEP
    return Split(inputs, lengths, rng.integers(0, 2, rows).astype(np.int32))


def texts(split):
    for row, n in zip(split.inputs.tolist(), split.lengths, strict=True):
        text = ["out", *row[:n], "out"]
        for left, token, right in zip(text, text[1:], text[2:], strict=False):
            if token not in TASK.special_tokens:
                yield (left, right), token


@pytest.mark.parametrize("part", [1, 3])
def test_of_tokens_agrees_with_counting_by_hand(monkeypatch, part):
    splits = {"train": make_split(0, 300 * part), "test": make_split(1, 300)}
    monkeypatch.setattr(floors, "MAX_TOKENS", splits["test"].inputs.size)
    found = of_tokens(TASK, splits)
    splits["train"] = splits["train"].take(slice(None, None, part))
    singles, pairs = Counter(dict.fromkeys(range(3, V), 1)), defaultdict(Counter)
    for around, token in texts(splits["train"]):
        singles[token] += 1
        pairs[around][token] += 1
    frequency = {token: n / singles.total() for token, n in singles.items()}
    usual = max(frequency, key=frequency.__getitem__)
    losses, right = [], []
    for around, token in texts(splits["test"]):
        seen = pairs[around]
        p = (seen[token] + frequency[token]) / (seen.total() + 1)
        losses.append((-np.log(frequency[token]), -np.log(p)))
        best = max(seen, key=lambda t: (seen[t], frequency[t]), default=usual)
        right.append((token == usual, token == best))
    for metric, values in (("loss", losses), ("mlm_accuracy", right)):
        wanted = np.mean(values, axis=0)
        assert list(found[metric].values()) == pytest.approx(list(wanted))
    _, (rule, accuracy) = found["mlm_accuracy"].items()
    assert ("(in 1/3 of train)" in rule) == (part == 3)
    assert accuracy > 0.6


def test_of_tokens_and_order_has_the_majority_of_train():
    splits = {"train": make_split(0), "test": make_split(1)}
    splits["train"].labels[:] = np.arange(300) < 200
    found = of_tokens_and_order(TASK, splits)["sop_accuracy"]
    assert found == {"majority class": splits["test"].labels.mean()}


def test_of_labels_has_the_f1_of_always_saying_one():
    split = SimpleNamespace(labels=np.array([1, 1, 1, 0, 0]))
    task = SimpleNamespace(floors=lambda train, test: {})
    found = of_labels(task, {"train": split, "test": split})  # type: ignore[arg-type]
    assert found["f1"] == {"class 1 always": pytest.approx(2 * 0.6 * 1 / 1.6)}
