"""Trivial baselines: the scores of fixed rules that look at very little.

Each function takes a task and its splits and returns metric -> rule -> value; rules
are fitted on train and measured on test.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lra_tasks.task import Task

Splits = Mapping[str, Any]
Floors = dict[str, dict[str, float]]
MAX_TOKENS = 2**23  # of a split; from a larger one evenly spaced rows are taken


def of_labels(task: Task, splits: Splits) -> Floors:
    """The task's own rules and, for f1, the rule that always answers 1."""
    positive = float(np.mean(np.asarray(splits["test"].labels) == 1))
    return {
        "accuracy": task.floors(splits["train"], splits["test"]),
        "f1": {"class 1 always": 2 * positive / (1 + positive)},
    }


def of_tokens(task: Task, splits: Splits) -> Floors:
    """A unigram model, and a model of a token given its two neighbours.

    The second estimates p(t | l, r) = (n(l, t, r) + p(t)) / (n(l, ., r) + 1), where p
    is the first and n counts in train. Neighbours are read unmasked.
    """
    ids = task.vocab_size + 1  # the last id stands outside a text
    parts = [_contexts(splits[name], task) for name in ("train", "test")]
    context, token = map(np.concatenate, zip(*parts, strict=True))
    size = len(parts[0][0])  # of train, which comes first
    unigram = np.bincount(token[:size], minlength=ids) + 1.0
    unigram[[*task.special_tokens, -1]] = 0
    unigram /= unigram.sum()
    contexts, context = np.unique(context, return_inverse=True)
    triples, triple = np.unique(context * ids + token, return_inverse=True)
    counts = np.bincount(triple[:size], minlength=len(triples))
    totals = np.bincount(context[:size], minlength=len(contexts))
    order = np.lexsort((unigram[triples % ids], counts))
    order = order[counts[order] > 0]  # the likeliest token of a context comes last
    likeliest = np.full(len(contexts), unigram.argmax())
    likeliest[triples[order] // ids] = triples[order] % ids

    context, token, triple = context[size:], token[size:], triple[size:]
    given = (counts[triple] + unigram[token]) / (totals[context] + 1)
    guess = likeliest[context]
    stride = _stride(splits["train"])
    fitted = f" (in 1/{stride} of train)" if stride > 1 else ""
    names = "frequency of each token", f"frequency given both neighbours{fitted}"
    losses = -np.log(unigram[token]).mean(), -np.log(given).mean()
    accuracies = (token == unigram.argmax()).mean(), (token == guess).mean()
    return {
        "loss": dict(zip(names, map(float, losses), strict=True)),
        "mlm_accuracy": dict(zip(names, map(float, accuracies), strict=True)),
    }


def of_tokens_and_order(task: Task, splits: Splits) -> Floors:
    """Rules for tokens; for the order the label that train has more often."""
    tokens = of_tokens(task, splits)
    majority = np.mean(splits["train"].labels) > 0.5
    order = {"majority class": float(np.mean(splits["test"].labels == majority))}
    return {"mlm_loss": tokens.pop("loss"), **tokens, "sop_accuracy": order}


def _contexts(split: Any, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """Both neighbours of each ordinary token, as one number, and the token: int64."""
    inputs, lengths = (x[:: _stride(split)] for x in (split.inputs, split.lengths))
    valid = np.arange(inputs.shape[1]) < lengths[:, None]
    outside = task.vocab_size
    inputs = np.where(valid, inputs.astype(np.int64), outside)
    inputs = np.pad(inputs, ((0, 0), (1, 1)), constant_values=outside)
    context = inputs[:, :-2] * (outside + 1) + inputs[:, 2:]
    ordinary = valid & ~np.isin(inputs[:, 1:-1], task.special_tokens)
    return context[ordinary], inputs[:, 1:-1][ordinary]


def _stride(split: Any) -> int:
    """Every how many rows one is read."""
    return max(1, split.inputs.size // MAX_TOKENS)
