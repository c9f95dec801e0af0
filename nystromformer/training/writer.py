"""What a run leaves behind: metrics.jsonl, TensorBoard events, result.json."""

import contextlib
import errno
import json
import os
import time
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto import event_pb2
from tensorboardX.summary import scalar

from nystromformer.training.bucket import Folder, ObjectFile, is_local, system_errors

METRICS_FILE = "metrics.jsonl"


def write_text(path: Folder, text: str) -> None:
    """Writes a file whole or not at all."""
    if not is_local(path):
        with system_errors(path):
            path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Folder, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, f"{json.dumps(value, indent=2, ensure_ascii=False)}\n")


class MetricsWriter:
    """Appends to metrics.jsonl, one object a line, and to a TensorBoard event file.

    In a bucket there is no event file, and the newest lines come some seconds later.

    Args:
      workdir: an existing folder.
      num_bytes: how much of metrics.jsonl belongs to the state that the run goes on
        from; what a killed run wrote after it is cut off and written again.
      step: the step of that state; TensorBoard drops what it has from there on.
    """

    def __init__(self, workdir: Folder, num_bytes: int = 0, step: int = 0):
        path = workdir / METRICS_FILE
        self.file: Any = (
            open(path, "ab", buffering=0)  # noqa: SIM115
            if is_local(path)
            else ObjectFile(path)
        )
        if self.file.tell() > num_bytes:
            self.file.seek(self.file.truncate(num_bytes))
        self.events = None
        if not is_local(path):
            return
        # Not SummaryWriter: its thread would report a full disk where nobody hears it.
        events = workdir / "events"
        events.mkdir(exist_ok=True)
        self.events = EventsWriter(str(events / "events"), f".{os.getpid()}")
        self._event(step, session_log={"status": 1})  # START

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
        if self.events is None:
            return
        for name, value in values.items():
            self._event(step, summary=scalar(f"{split}/{name}", value))
        self.events.flush()

    def _event(self, step: int, **content: Any) -> None:
        assert self.events is not None
        event_type: Any = getattr(event_pb2, "Event")  # noqa: B009 - made at run time
        event = event_type(step=step, wall_time=time.time(), **content)
        self.events.write_event(event)

    def num_bytes(self) -> int:
        """The size of metrics.jsonl up to now, all of it written, or an OSError."""
        self.file.flush()
        return self.file.tell()

    def close(self) -> None:
        """What fails is no loss: no checkpoint or result counts on it."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            if self.events is not None:
                self.events.close()


class SilentWriter:
    """A MetricsWriter of the processes that do not write."""

    def write(self, step: int, split: str, values: dict[str, float]) -> None:
        """Nothing."""

    def num_bytes(self) -> int:
        """Zero."""
        return 0

    def close(self) -> None:
        """Nothing."""
