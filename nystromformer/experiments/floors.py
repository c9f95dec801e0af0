"""Floors: what fixed rules reach that look at very little.

Each function takes a task and its splits and gives metric -> name -> value; rules are
fitted on train and measured on test.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lra_tasks.task import Task

Splits = Mapping[str, Any]
Floors = dict[str, dict[str, float]]
MOST_TOKENS = 2**23  # of a split, or less than twice as many, in rows evenly spaced
BINS = 16  # of the lengths of a part


def of_labels(task: Task, splits: Splits) -> Floors:
    """The task's own rules and, for f1, the rule that always answers 1."""
    positive = float(np.mean(np.asarray(splits["test"].labels) == 1))
    return {
        "accuracy": task.floors(splits["train"], splits["test"]),
        "f1": {"class 1 always": 2 * positive / (1 + positive)},
    }


def of_tokens(task: Task, splits: Splits) -> Floors:
    """Predicts a token by its frequency, and by that between its two neighbours.

    Of a token t between l and r the second says (n(l, t, r) + p(t)) / (n(l, ., r) + 1),
    where p is the first and n counts. The neighbours are seen, never hidden.
    """
    ids = task.vocab_size + 1  # the last stands before and behind a text
    (before, token), (asked, target) = (
        _tokens(splits[name], task) for name in ("train", "test")
    )
    frequency = np.bincount(token, minlength=ids) + 1.0
    frequency[[*task.special_tokens, -1]] = 0
    frequency /= frequency.sum()
    triples, counts = np.unique(before * ids + token, return_counts=True)
    contexts, starts = np.unique(triples // ids, return_index=True)
    totals = np.add.reduceat(counts, starts)
    order = np.lexsort((frequency[triples % ids], counts, triples // ids))
    best = triples[order][np.append(starts[1:], len(triples)) - 1] % ids

    place = np.searchsorted(contexts, asked).clip(max=len(contexts) - 1)
    known = contexts[place] == asked
    wanted = asked * ids + target
    at = np.searchsorted(triples, wanted).clip(max=len(triples) - 1)
    seen = np.where(triples[at] == wanted, counts[at], 0)
    between = (seen + frequency[target]) / (np.where(known, totals[place], 0) + 1)
    guess = np.where(known, best[place], frequency.argmax())
    # Only this rule gains much by more text than that.
    every = _every(splits["train"])
    fitted = f" (in 1/{every} of train)" if every > 1 else ""
    names = "frequency of each token", f"frequency given both neighbours{fitted}"
    losses = -np.log(frequency[target]).mean(), -np.log(between).mean()
    right = (target == frequency.argmax()).mean(), (target == guess).mean()
    return {
        metric: dict(zip(names, map(float, values), strict=True))
        for metric, values in (("loss", losses), ("mlm_accuracy", right))
    }


def of_tokens_and_order(task: Task, splits: Splits) -> Floors:
    """Floors of tokens, and of the order: its majority and a rule by lengths."""
    tokens = of_tokens(task, splits)
    (train, answers), (test, labels) = (
        _part_lengths(splits[name], task) for name in ("train", "test")
    )
    votes = np.bincount(train, 2.0 * answers - 1, minlength=BINS * BINS)
    majority = votes.sum() > 0
    by_lengths = np.where(votes == 0, majority, votes > 0)[test]
    order = {
        "majority class": float(np.mean(labels == majority)),
        "lengths of both parts": float(np.mean(labels == by_lengths)),
    }
    mlm = {"mlm_loss": tokens["loss"], "mlm_accuracy": tokens["mlm_accuracy"]}
    return {**mlm, "sop_accuracy": order}


def _tokens(split: Any, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Of ordinary tokens the two neighbours, as one number, and the token: int64."""
    inputs, lengths = (x[:: _every(split)] for x in (split.inputs, split.lengths))
    valid = np.arange(inputs.shape[1]) < lengths[:, None]
    outside = task.vocab_size
    inputs = np.where(valid, inputs.astype(np.int64), outside)
    inputs = np.pad(inputs, ((0, 0), (1, 1)), constant_values=outside)
    around = inputs[:, :-2] * (outside + 1) + inputs[:, 2:]
    ordinary = valid & ~np.isin(inputs[:, 1:-1], task.special_tokens)
    return around[ordinary], inputs[:, 1:-1][ordinary]


def _part_lengths(split: Any, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Of examples the lengths of both parts, as one bin, and the label."""
    arrays = (split.inputs, split.lengths, split.labels)
    inputs, lengths, labels = (np.asarray(x[:: _every(split)]) for x in arrays)
    first = (inputs == task.separator).argmax(1)
    width = inputs.shape[1] // BINS + 1
    return first // width * BINS + (lengths - first) // width, labels


def _every(split: Any) -> int:
    """Of how many rows one is looked at."""
    return max(1, split.inputs.size // MOST_TOKENS)
