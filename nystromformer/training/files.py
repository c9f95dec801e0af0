"""The files of a run, on a disk or in a bucket, written whole or not at all.

A run's folder may lie in a bucket, as gs://BUCKET/RUN. A bucket has no locks, and
nothing in it is appended to or renamed in one go; but an object is there whole or not
at all.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath

from nystromformer.training.metrics import METRICS_FILE as METRICS_FILE

Folder = Path | epath.Path


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
