"""Floors: the scores that rules without a model reach on the test split.

A function of this module takes a task and its splits, and returns floors: for a metric
of the objective the score of each rule. The rules are fitted on train.
"""

from typing import Any

import numpy as np

from lra_tasks.task import Task

# Of a split with more tokens than this, evenly spaced rows are counted.
MAX_TOKENS = 2**23

Floors = dict[str, dict[str, float]]  # metric -> rule -> its score on test


def no_floors(task: Task, splits: Any) -> Floors:
    """An objective without rules."""
    return {}


def label_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules and, for f1, the rule that always answers 1."""
    share_of_class_1 = float(np.mean(np.asarray(splits["test"].labels) == 1))
    return {
        "accuracy": task.floors(splits["train"], splits["test"]),
        "f1": {"class 1 always": 2 * share_of_class_1 / (1 + share_of_class_1)},
    }


def position_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules for the labels of tokens."""
    return {"accuracy": task.floors(splits["train"], splits["test"])}


def mlm_floors(task: Task, splits: Any) -> Floors:
    """A unigram model of the ordinary tokens, with add-one smoothing.

    Its loss is the cross-entropy of the test tokens, in nats; its answer is the token
    that train has most often.
    """
    train_counts = _token_counts(splits["train"], task)
    test_counts = _token_counts(splits["test"], task)
    losses = -np.log((train_counts + 1) / (train_counts + 1).sum())
    test_shares = test_counts / test_counts.sum()
    return {
        "loss": {"frequency of each token": float(test_shares @ losses)},
        "mlm_accuracy": {
            "frequency of each token": float(test_shares[train_counts.argmax()])
        },
    }


def denoising_floors(task: Task, splits: Any) -> Floors:
    """The rules for the label, and for masked tokens the most frequent token."""
    return {
        "accuracy": label_floors(task, splits)["accuracy"],
        "denoising_accuracy": mlm_floors(task, splits)["mlm_accuracy"],
    }


def mlm_sop_floors(task: Task, splits: Any) -> Floors:
    """The rules for tokens; for the order the label that train has more often."""
    token_floors = mlm_floors(task, splits)
    majority = np.mean(splits["train"].labels) > 0.5
    accuracy = float(np.mean(splits["test"].labels == majority))
    return {
        "mlm_loss": token_floors["loss"],
        "mlm_accuracy": token_floors["mlm_accuracy"],
        "sop_accuracy": {"majority class": accuracy},
    }


def _token_counts(split: Any, task: Task) -> np.ndarray:
    """How often each ordinary token, one that is not special, is in a split."""
    stride = max(1, split.inputs.size // MAX_TOKENS)
    inputs = split.inputs[::stride]
    lengths = split.lengths[::stride]
    is_valid = np.arange(inputs.shape[1]) < lengths[:, None]
    counts = np.bincount(inputs[is_valid], minlength=task.vocab_size)
    return np.delete(counts, task.special_tokens)
