"""Progress: a bar on a terminal, a line every few seconds in a log."""

import sys
import time
from typing import Self

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts work on stderr: `with Progress("listops", 100_000) as progress: ...`."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done = title, total, 0
        self._bar = tqdm(total=total, desc=title, disable=None, leave=False)
        self._started = self._last_line = time.monotonic()

    def update(self, count: int) -> None:
        """Says that `count` more of the total are done."""
        self._done += count
        self._bar.update(count)
        now = time.monotonic()
        if self._bar.disable and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            seconds = now - self._started
            line = f"{self._title}: {self._done:,} of {self._total:,} ({seconds:.0f} s)"
            print(line, file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
