"""Texts or token ids of a user as the arrays that a model takes.

Letters: B examples, L columns of token ids.
"""

import warnings
from typing import Any

import numpy as np

from lra_tasks.task import Task


def prepare_inputs(
    task: Task, inputs: Any, lengths: Any = None, num_sequences: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes texts, or checks token ids, and pads them to the task's max_length.

    Texts that are too long are cut, as in training, and a warning counts them.

    Args:
      task: whose vocabulary the inputs have.
      inputs: texts, or pairs of texts where an example has two; or token ids [B, L],
        or [B, 2, L] of two sequences, with L ≤ max_length.
      lengths: the numbers of tokens of each row of ids, [B] or [B, 2]. None: no row
        has padding; then a row that ends in 0, the padding, is an error.
      num_sequences: the sequences of one example, 1 or 2.

    Returns:
      Token ids int32 and their mask bool: [B, max_length], or [B, 2, max_length].

    Raises:
      DataError: for a text that is not one of the task's.
      ValueError: for inputs or lengths of a different form.
    """
    if _is_array_of_numbers(inputs):
        tokens = np.asarray(inputs)
        _check_tokens(task, tokens, num_sequences)
        if lengths is None:
            _check_no_padding(task, tokens)
            lengths = np.full(tokens.shape[:-1], tokens.shape[-1])
        else:
            lengths = np.asarray(lengths)
            _check_lengths(tokens, lengths)
    elif lengths is not None:
        raise ValueError("lengths are of token ids: leave them out with texts")
    else:
        tokens, lengths = _encode(task, inputs, num_sequences)

    mask = np.arange(task.max_length) < lengths[..., None]
    num_missing = task.max_length - tokens.shape[-1]
    padding = [(0, 0)] * (tokens.ndim - 1) + [(0, num_missing)]
    return np.pad(tokens.astype(np.int32), padding), mask


def _is_array_of_numbers(inputs: Any) -> bool:
    """Whether it is an array of numpy or of another library, and not of texts."""
    if not hasattr(inputs, "dtype"):
        return False
    # Other libraries, such as PyTorch, have dtypes without a kind, and no texts.
    kind = getattr(inputs.dtype, "kind", "i")
    return kind in "biuf"


def _encode(
    task: Task, inputs: Any, num_sequences: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids [B, max_length] or [B, 2, max_length] of texts, and their lengths."""
    texts = np.atleast_1d(np.array(inputs, object))
    # The two texts of a pair are two sequences, or two parts of one.
    needs_pairs = num_sequences == 2 or task.num_texts == 2
    expected_shape = (len(texts), 2) if needs_pairs else (len(texts),)
    are_texts = all(isinstance(text, str) for text in texts.flat)
    if texts.shape != expected_shape or not are_texts:
        kind = "pairs of texts" if needs_pairs else "texts"
        raise ValueError(
            f"inputs must be a list of {kind}, or an array of token ids; got "
            f"{inputs!r:.60}"
        )

    # The two sequences of an example are two texts of the task.
    task_texts = list(texts if num_sequences == 1 else texts.ravel())
    tokens, lengths = task.encode(task_texts)
    _, lengths_with_more_room = task.with_more_room().encode(task_texts)
    num_cut = np.sum(lengths_with_more_room > lengths)
    if num_cut:
        warnings.warn(
            f"{num_cut:,} of {len(task_texts):,} texts are cut: they have more tokens "
            f"than {task.name} takes (max_length={task.max_length})",
            stacklevel=4,  # whoever called the method that calls prepare_inputs
        )
    if num_sequences == 1:
        return tokens, lengths
    return tokens.reshape(-1, 2, task.max_length), lengths.reshape(-1, 2)


def _check_tokens(task: Task, tokens: np.ndarray, num_sequences: int) -> None:
    """Raises ValueError unless token ids have a fitting shape and are in the range."""
    is_too_long = tokens.ndim > 0 and tokens.shape[-1] > task.max_length
    if num_sequences == 1 and (tokens.ndim != 2 or is_too_long):
        raise ValueError(
            f"token ids must be [B, L] with L ≤ {task.max_length}, got {tokens.shape}"
        )
    is_pair = tokens.ndim == 3 and tokens.shape[1] == 2
    if num_sequences == 2 and (not is_pair or is_too_long):
        raise ValueError(
            f"token ids must be [B, 2, L] with L ≤ {task.max_length}, got "
            f"{tokens.shape}"
        )
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"token ids must be integers, got {tokens.dtype}")
    if not np.isin(tokens, np.arange(task.vocab_size)).all():
        raise ValueError(f"token ids must be from 0 to {task.vocab_size - 1}")


def _check_no_padding(task: Task, tokens: np.ndarray) -> None:
    """Raises ValueError if a row of token ids ends in that of padding."""
    if task.zero_is_padding and not tokens[..., -1:].all():
        raise ValueError(
            "token ids end in 0, the padding: give lengths, the number of tokens of "
            "each row, which task.encode returns"
        )


def _check_lengths(tokens: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError unless there is a possible length for each row."""
    *row_axes, num_columns = tokens.shape
    if list(lengths.shape) != row_axes or lengths.dtype.kind not in "iu":
        raise ValueError(
            f"lengths must be integers of shape {tuple(row_axes)}, one for each row of "
            f"token ids, got {lengths!r:.60}"
        )
    if not np.isin(lengths, np.arange(num_columns + 1)).all():
        raise ValueError(
            f"lengths must be from 0 to {num_columns}, the columns of the token ids, "
            f"got {lengths.min()} to {lengths.max()}"
        )
