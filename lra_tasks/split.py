"""Split: the examples of one split as plain arrays, and DataError."""

import hashlib
from dataclasses import dataclass

import numpy as np


class DataError(ValueError):
    """What a user can cause and mend; the message is one line and says how."""


@dataclass(frozen=True)
class Split:
    """The examples of one split.

    Attributes:
      inputs: uint8 or uint16 `[num_inputs, L]`, token ids, 0 behind a row's length.
      lengths: int32 `[num_inputs]`, valid tokens of each row.
      labels: int32 `[num_examples]`.
      pairs: None when example i is row i; for a task of two inputs int32
        `[num_examples, 2]`, rows of `inputs`, so that a document is stored once.
    """

    inputs: np.ndarray
    lengths: np.ndarray
    labels: np.ndarray
    pairs: np.ndarray | None = None

    @property
    def num_examples(self) -> int:
        return len(self.labels)

    def take(self, examples: np.ndarray) -> "Split":
        """The examples with these indices, in this order; documents all stay."""
        labels = self.labels[examples]
        if self.pairs is not None:
            return Split(self.inputs, self.lengths, labels, self.pairs[examples])
        return Split(self.inputs[examples], self.lengths[examples], labels)

    def content_hash(self) -> str:
        """sha256 (hex) of shapes, dtypes and values, the same on every machine."""
        digest = hashlib.sha256()
        for array in (self.inputs, self.lengths, self.labels, self.pairs):
            if array is None:
                digest.update(b"none")
                continue
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            little_endian = array.dtype.newbyteorder("<")
            digest.update(np.ascontiguousarray(array, little_endian).data)
        return digest.hexdigest()
