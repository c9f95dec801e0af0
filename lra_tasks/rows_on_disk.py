"""Rows: the inputs of a split that stay on disk."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lra_tasks.split import pad


class Rows:
    """The inputs of a split that stay on disk: `rows[[3, 5]]` reads `[2, L]`.

    The index is one that numpy takes for the first axis: numbers, a mask or a slice.
    """

    def __init__(self, source: Any, width: int, dtype: Any):
        """Takes a TFDS data source, whose records have `tokens`.

        Args:
          source: the data source.
          width: L, to which rows are padded.
          dtype: the type of the inputs.
        """
        self.source = source
        self.dtype = np.dtype(dtype)
        self.shape = (len(source), width)
        self.size = len(source) * width
        self._numbers = np.arange(len(source), dtype=np.int32)
        self._thread = ThreadPoolExecutor(1)
        # The numbers of the rows that the thread reads, and what it has read.
        self._prefetched = np.empty(0, np.int64)
        self._future = Future[np.ndarray]()

    def __len__(self) -> int:
        return len(self.source)

    def prefetch(self, rows: np.ndarray) -> None:
        """Starts reading `rows`, int `[n]`, in a thread, for an index to come."""
        self._prefetched = rows
        self._future = self._thread.submit(self._read, rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        numbers = self._numbers[rows]
        flat = numbers.reshape(-1)
        # The next chunk may turn out shorter than the one that was prefetched: then it
        # is the beginning of it.
        is_prefetched = np.array_equal(self._prefetched[: flat.size], flat)
        if flat.size and is_prefetched:
            tokens = self._future.result()[: flat.size]
        else:
            tokens = self._read(flat)
        return tokens.reshape(*numbers.shape, self.shape[1])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        records = self.source.__getitems__(rows.tolist())
        inputs, _ = pad(
            [record["tokens"] for record in records], self.shape[1], self.dtype
        )
        return inputs
