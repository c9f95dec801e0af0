"""Floors: what rules that need no model reach on the test split of an objective."""

from typing import Any

import numpy as np

from lra_tasks.task import Task

MAX_TOKENS = 2**23  # of a split; from a larger one evenly spaced rows are taken

Floors = dict[str, dict[str, float]]  # metric -> rule -> its score on test


def label_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules and, for f1, the rule that always answers 1."""
    positive = float(np.mean(np.asarray(splits["test"].labels) == 1))
    return {
        "accuracy": task.floors(splits["train"], splits["test"]),
        "f1": {"class 1 always": 2 * positive / (1 + positive)},
    }


def position_floors(task: Task, splits: Any) -> Floors:
    """The task's own rules for the labels of tokens."""
    return {"accuracy": task.floors(splits["train"], splits["test"])}


def mlm_floors(task: Task, splits: Any) -> Floors:
    """A unigram model of the ordinary tokens, with add-one smoothing."""
    train, test = (_counts(splits[name], task) for name in ("train", "test"))
    surprise = -np.log((train + 1) / (train + 1).sum())
    rule, share = "frequency of each token", test / test.sum()
    accuracy = float(share[train.argmax()])
    return {"loss": {rule: float(share @ surprise)}, "mlm_accuracy": {rule: accuracy}}


def denoising_floors(task: Task, splits: Any) -> Floors:
    """The rules for the label, and for hidden tokens the most frequent token."""
    tokens = mlm_floors(task, splits)
    return {
        "accuracy": label_floors(task, splits)["accuracy"],
        "denoising_accuracy": tokens["mlm_accuracy"],
    }


def mlm_sop_floors(task: Task, splits: Any) -> Floors:
    """The rule for tokens; for the order the label that train has more often."""
    tokens = mlm_floors(task, splits)
    majority = np.mean(splits["train"].labels) > 0.5
    order = {"majority class": float(np.mean(splits["test"].labels == majority))}
    return {"mlm_loss": tokens.pop("loss"), **tokens, "sop_accuracy": order}


def _counts(split: Any, task: Task) -> np.ndarray:
    """How often each ordinary token, one that is not special, is in a split."""
    stride = max(1, split.inputs.size // MAX_TOKENS)
    inputs, lengths = (x[::stride] for x in (split.inputs, split.lengths))
    valid = np.arange(inputs.shape[1]) < lengths[:, None]
    counts = np.bincount(inputs[valid], minlength=task.vocab_size)
    return np.delete(counts, task.special_tokens)
