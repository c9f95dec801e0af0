"""One process at a time, and the others hear what they wait for."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


@contextlib.contextmanager
def hold(path: Path, work: str) -> Iterator[None]:
    """Holds the lock file `path`, which dies with its process.

    Args:
      path: its folder exists; the file may stay.
      work: what the holder does: "preparing text".
    """
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        message = f"another process is {work}: waiting for it"
        print(message, file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
