"""Which example belongs to which split: none to two."""

import hashlib
import sys
from collections.abc import Mapping

import numpy as np

from lra_tasks.split import DataError, Split


def hold_out(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, ...]:
    """Draws a share of each class.

    Args:
      labels: `[n]`.
      share: of each class, rounded to whole examples.
      seed: of the draw.

    Returns:
      The indices kept and those held out, each ascending.
    """
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[rng.permutation(members)[: round(share * len(members))]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def separate(name: str, splits: Mapping[str, Split]) -> dict[str, Split]:
    """Leaves out of train what is also in validation or test, and so on.

    The test split stays as it is published; a line on stderr says how many were left
    out elsewhere. Equal are examples of equal tokens, whatever their labels; of pairs,
    in either order.

    Raises:
      DataError: no example of a split is left.
    """
    seen: set[bytes] = set()
    parts = {}
    for split_name in ("test", "validation", "train"):
        split = splits[split_name]
        contents = _contents(split)
        fresh = np.array([content not in seen for content in contents], bool)
        seen.update(contents)
        if missing := np.count_nonzero(~fresh):
            message = f"{name}: {missing:,} examples left out of {split_name}: repeated"
            print(f"{message} in a split kept for evaluation", file=sys.stderr)
            split = split.take(np.flatnonzero(fresh))
        if not split.num_examples:
            raise DataError(f"no example of {split_name} is left")
        parts[split_name] = split
    return {split_name: parts[split_name] for split_name in splits}


def _contents(split: Split) -> list[bytes]:
    """A digest of each example's tokens."""
    rows = [
        hashlib.blake2b(row[:length].tobytes(), digest_size=16).digest()
        for row, length in zip(split.inputs, split.lengths, strict=True)
    ]
    if split.pairs is None:
        return rows
    return [b"".join(sorted((rows[a], rows[b]))) for a, b in split.pairs]
