"""Checks of what a task makes, before it is stored: its splits, tokens and labels."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lra_tasks.base import Task
from lra_tasks.errors import DataError
from lra_tasks.split import NO_LABEL, SPLITS


def check_split_names(task: Task, made_names: Iterable[str]) -> None:
    """Checks that a task makes the splits that it names, and that they have a use.

    A run trains on train, validates on validation, and is tested on all others.

    Raises:
      DataError: for other names.
    """
    further_names = task.splits[len(SPLITS) :]
    has_three = tuple(task.splits[: len(SPLITS)]) == SPLITS
    if not has_three or not all(name.startswith("test_") for name in further_names):
        raise DataError(
            f"{task.name}: the class attribute splits is {task.splits}: begin it with "
            f"{SPLITS}, and each further name with test_"
        )
    if set(made_names) != set(task.splits):
        raise DataError(
            f"{task.name}: it makes the splits {', '.join(made_names)}, but its class "
            f"attribute splits is {task.splits}: rename them here or there"
        )


def check_tokens(task: Task, split: str, tokens: Any) -> np.ndarray:
    """Returns the tokens of a sequence in the task's type.

    Raises:
      DataError: if they do not fit: in that type they would be other tokens.
    """
    ids = np.asarray(tokens)
    if len(ids) > task.max_length:
        raise DataError(
            f"{task.name}: {split} has {len(ids):,} tokens in a sequence, over "
            f"max_length={task.max_length}: cut it, or raise max_length"
        )
    if len(ids) and ids.dtype.kind not in "iu":
        raise DataError(
            f"{task.name}: {split} has tokens of {ids.dtype}: they must be integers"
        )
    misfit = _find_misfit(ids, task.vocab_size)
    if misfit is not None:
        raise DataError(
            f"{task.name}: {split} has the token id {misfit}: "
            f"vocab_size={task.vocab_size} has 0 to {task.vocab_size - 1}"
        )
    # Text has 257 ids in uint8, since no text has the largest one.
    tokens = ids.astype(task.dtype)
    if not np.array_equal(tokens, ids):
        raise DataError(
            f"{task.name}: {split} has the token id {ids.max()}, which is too large "
            f"for {tokens.dtype}: override the property dtype"
        )
    return tokens


def check_labels(task: Task, split: str, label: Any, *, num_tokens: int) -> np.ndarray:
    """Returns the label of an example, or those of its tokens, as int32.

    Raises:
      DataError: for a label that is no class, where TFDS itself takes -1 for any class;
        or if there is not one for each token, or more than num_labels of them.
    """
    labels = np.asarray(label)
    if labels.size and labels.dtype.kind not in "iub":
        raise DataError(
            f"{task.name}: {split} has labels of {labels.dtype}: they must be integers"
        )
    known = labels
    if task.num_labels:
        if labels.shape != (num_tokens,):
            raise DataError(
                f"{task.name}: {split} has labels of shape {labels.shape} for "
                f"{num_tokens} tokens: give each token one, {NO_LABEL} for none"
            )
        known = labels[labels != NO_LABEL]
        if len(known) > task.num_labels:
            raise DataError(
                f"{task.name}: {split} has {len(known)} labels in a sequence, over "
                f"num_labels={task.num_labels}: raise num_labels"
            )
    misfit = _find_misfit(known, task.num_classes)
    if misfit is not None:
        raise DataError(
            f"{task.name}: {split} has the label {misfit}: "
            f"num_classes={task.num_classes} has 0 to {task.num_classes - 1}"
        )
    return labels.astype(np.int32)


def _find_misfit(numbers: np.ndarray, end: int) -> int | None:
    """The first of some numbers that is not 0 to end − 1; None if there is none."""
    is_misfit = (numbers < 0) | (numbers >= end)
    if not is_misfit.any():
        return None
    return numbers[is_misfit].flat[0]
