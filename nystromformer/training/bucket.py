"""A run's folder may lie in a bucket, as gs://BUCKET/RUN, instead of on a disk.

A bucket has no locks, and nothing in it is appended to or renamed in one go; but an
object is there whole or not at all.
"""

import contextlib
import io
import math
import time
from collections.abc import Iterator
from pathlib import Path

from etils import epath

from nystromformer.training.errors import first_line

Folder = Path | epath.Path
SECONDS_BETWEEN_WRITES = 5.0
LEAST_SECONDS = 1.0  # a bucket takes one write a second of the same object


def is_local(folder: Folder) -> bool:
    """Whether it is a folder of this machine, not of a bucket."""
    return "://" not in str(folder)


@contextlib.contextmanager
def system_errors(path: Folder) -> Iterator[None]:
    """Each library of a cloud has errors of its own: inside, they become OSErrors."""
    try:
        yield
    except Exception as error:
        if is_local(path):
            raise
        raise OSError(f"{path}: {first_line(error)}") from error


class ObjectFile(io.BytesIO):
    """An object's bytes, in memory: `flush` writes them, and `write` does now and then.

    Starts at the end of what is there.
    """

    def __init__(self, path: Folder):
        with system_errors(path):
            super().__init__(path.read_bytes() if path.exists() else b"")
        self.seek(0, io.SEEK_END)
        self.path, self.name = path, str(path)
        self.tried_at, self.written = -math.inf, True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Appends; if the last time is a while ago, tries to write the object."""
        size = super().write(data)
        self.written = False
        if time.monotonic() >= self.tried_at + SECONDS_BETWEEN_WRITES:
            with contextlib.suppress(OSError):
                self.flush()
        return size

    def truncate(self, size: int | None = None) -> int:
        """Cuts off, which the next flush makes so in the bucket."""
        self.written = False
        return super().truncate(size)

    def flush(self) -> None:
        """Writes the object, where it is not yet; OSError if the bucket refuses."""
        if self.written:
            return
        time.sleep(max(0.0, self.tried_at + LEAST_SECONDS - time.monotonic()))
        self.tried_at = time.monotonic()
        with system_errors(self.path):
            self.path.write_bytes(self.getvalue())
        self.written = True

    def close(self) -> None:
        """Writes the object, once."""
        try:
            if not self.closed:
                self.flush()
        finally:
            super().close()
