"""The files of a run, on a disk or in a bucket, written whole or not at all.

A run's folder may lie in a bucket, as gs://BUCKET/RUN. A bucket has no locks, and
nothing in it is appended to or renamed in one go; but an object is there whole or not
at all.
"""

import contextlib
import errno
import io
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from nystromformer.training.devices import is_first

Folder = Path | epath.Path
METRICS_FILE = "metrics.jsonl"
SECONDS_BETWEEN_WRITES = 5.0
LEAST_SECONDS = 1.0  # a bucket takes one write a second of the same object


def first_line(error: BaseException) -> str:
    """The first line of an error's message, at most 400 characters, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]


def is_local(folder: Folder) -> bool:
    """Whether a folder is on this machine rather than in a bucket."""
    return "://" not in str(folder)


@contextlib.contextmanager
def system_errors(path: Folder) -> Iterator[None]:
    """A context that turns the errors of cloud libraries into OSErrors."""
    try:
        yield
    except Exception as error:
        if is_local(path):
            raise
        said = ": ".join(str(error).split("\n")) or type(error).__name__
        raise OSError(f"{path}: {said[:300]}") from error  # the first line says little


class ObjectFile(io.BytesIO):
    """An object's bytes, in memory: `flush` writes them, and `write` does now and then.

    Starts at the end of what is there.
    """

    def __init__(self, path: Folder):
        with system_errors(path):
            super().__init__(path.read_bytes() if path.exists() else b"")
        self.seek(0, io.SEEK_END)
        self.path, self.tried_at = path, -math.inf

    def write(self, data: bytes) -> int:  # type: ignore[override]
        """Appends; if the last time is a while ago, tries to write the object."""
        size = super().write(data)
        if time.monotonic() >= self.tried_at + SECONDS_BETWEEN_WRITES:
            with contextlib.suppress(OSError):
                self.flush()
        return size

    def flush(self) -> None:
        """Writes the object; OSError if the bucket refuses."""
        time.sleep(max(0.0, self.tried_at + LEAST_SECONDS - time.monotonic()))
        self.tried_at = time.monotonic()
        with system_errors(self.path):
            self.path.write_bytes(self.getvalue())


def write_bytes(path: Folder, content: bytes) -> None:
    """Writes a file whole or not at all; makes its folder."""
    with system_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_local(path):
            path.write_bytes(content)
            return
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Folder, text: str) -> None:
    """Writes a file whole or not at all."""
    write_bytes(path, text.encode())


def write_json(path: Folder, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, f"{json.dumps(value, indent=2, ensure_ascii=False)}\n")


class EventFile:
    """A TensorBoard event file; what others hold from this step on is dropped."""

    def __init__(self, folder: Folder, step: int):
        # Here, as this takes a second, for which the first loss need not wait.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        folder.mkdir(exist_ok=True)
        self.event_type: Any = getattr(event_pb2, "Event")  # noqa: B009 - run time
        self.scalar = scalar
        # Not SummaryWriter: its thread would print a full disk's traceback.
        self.events = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        self._add(step, session_log={"status": 1})  # START: purges later steps

    def write(self, step: int, values: dict[str, float]) -> None:
        """Adds a scalar for each name."""
        for name, value in values.items():
            self._add(step, summary=self.scalar(name, value))
        self.events.flush()

    def close(self) -> None:
        """Writes what is left."""
        self.events.close()

    def _add(self, step: int, **content: Any) -> None:
        event = self.event_type(step=step, wall_time=time.time(), **content)
        self.events.write_event(event)


class MetricsWriter:
    """Appends to metrics.jsonl, one object a line, and to a TensorBoard event file.

    Only the first process writes; what the others write goes nowhere. In a bucket there
    is no event file, and the newest lines come some seconds later.

    Args:
      workdir: an existing folder.
      num_bytes: how much of metrics.jsonl belongs to the state that the run goes on
        from; what a killed run wrote after it is cut off and written again.
      step: the step of that state; TensorBoard drops what it has from there on.

    Raises:
      OSError: metrics.jsonl is a link: what it points at is not this run's.
    """

    def __init__(self, workdir: Folder, num_bytes: int = 0, step: int = 0):
        path = workdir / METRICS_FILE if is_first() else Path(os.devnull)
        self.workdir, self.step = workdir, step
        self.events: EventFile | None = None
        if not is_local(path):
            self.file: Any = ObjectFile(path)
        else:
            if Path(path).is_symlink():
                raise OSError(f"{path} is a link; delete it, or name another workdir")
            self.file = open(path, "ab", buffering=0)  # noqa: SIM115
        if self.file.tell() > num_bytes:
            self.file.seek(self.file.truncate(num_bytes))

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """One line: step, split, values. Raises OSError when the disk is full.

        What a bucket refuses is tried again, at the latest by num_bytes.
        """
        row = {"step": step, "split": split, **values}
        line = f"{json.dumps(row, allow_nan=False)}\n".encode()
        before = self.file.tell()
        if self.file.write(line) < len(line):  # a disk that is full on the way
            self.file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file.name)
        if is_local(self.workdir) and is_first():
            self.events = self.events or EventFile(self.workdir / "events", self.step)
            self.events.write(step, {f"{split}/{k}": v for k, v in values.items()})

    def num_bytes(self) -> int:
        """The size of metrics.jsonl up to now, all of it written, or an OSError."""
        self.file.flush()
        return self.file.tell()

    def close(self) -> None:
        """Closes the files; errors are ignored, for nothing depends on them."""
        with contextlib.suppress(OSError), self.file:
            self.file.flush()
        with contextlib.suppress(OSError):
            if self.events is not None:
                self.events.close()
