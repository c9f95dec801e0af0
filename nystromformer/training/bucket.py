"""A run's folder may lie in a bucket, as gs://BUCKET/RUN, instead of on a disk.

A bucket has no locks, and nothing in it is appended to or renamed in one go; but an
object is there whole or not at all.
"""

import io
import math
import time
from pathlib import Path

from etils import epath

from nystromformer.training.errors import first_line

Folder = Path | epath.Path
SECONDS_BETWEEN_WRITES = 5.0  # a bucket takes one a second of the same object


def is_local(folder: Folder) -> bool:
    """Whether it is a folder of this machine, not of a bucket."""
    return "://" not in str(folder)


class ObjectFile(io.BytesIO):
    """An object's bytes, in memory: `flush` writes them, and `write` does now and then.

    Starts at the end of what is there. Raises OSError where the bucket refuses.
    """

    def __init__(self, path: Folder):
        super().__init__(path.read_bytes() if path.exists() else b"")
        self.seek(0, io.SEEK_END)
        self.path, self.name, self.written_at = path, str(path), -math.inf

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Appends; writes the object if the last time is a while ago."""
        size = super().write(data)
        if time.monotonic() >= self.written_at + SECONDS_BETWEEN_WRITES:
            self.flush()
        return size

    def flush(self) -> None:
        """Writes the object."""
        try:
            self.path.write_bytes(self.getvalue())
        except Exception as error:  # each library of a cloud has its own
            raise OSError(f"{self.path}: {first_line(error)}") from error
        self.written_at = time.monotonic()

    def close(self) -> None:
        """Writes the object, once."""
        if not self.closed:
            self.flush()
        super().close()
