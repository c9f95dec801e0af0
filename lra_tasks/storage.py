"""Prepared splits on disk: made once, read whole or not at all.

A dataset is a folder with a safetensors file for each split, made beside its place and
renamed when it is complete. Padding is left out. The header of each file keeps a sha256
of the split, checked when reading.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from filelock import FileLock, Timeout

from lra_tasks.split import DataError, Split

ROWS = 4096  # of a split that are put together at a time
PathLike = str | os.PathLike[str]
Options = Mapping[str, Any]  # JSON values


def get_root(data_dir: PathLike | None = None) -> Path:
    """`data_dir`, else $LRA_DATA_DIR, else ~/.cache/lra_tasks."""
    root = data_dir or os.environ.get("LRA_DATA_DIR") or "~/.cache/lra_tasks"
    return Path(root).expanduser().absolute()


def get_folder(
    name: str, options: Options, version: str, data_dir: PathLike | None = None
) -> Path:
    """The folder of a dataset, by its name, options (JSON values) and version."""
    pinned = json.dumps({**options, "stored as": "safetensors"}, sort_keys=True)
    key = hashlib.sha256(pinned.encode()).hexdigest()[:16]
    return get_root(data_dir) / name / key / version


@contextlib.contextmanager
def hold(path: Path, work: str) -> Iterator[None]:
    """Holds the lock file `path`, which dies with its process.

    Whoever waits for it hears that another process is at `work`: "preparing text".
    """
    try:
        lock = FileLock(path).acquire(blocking=False)
    except Timeout:
        message = f"another process is {work}: waiting for it"
        print(message, file=sys.stderr, flush=True)
        lock = FileLock(path).acquire()
    with lock:
        yield


def make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Calls `make` with a folder to work in, unless `folder` is there.

    One process at a time. `make` renames what it made in the end; what a process that
    was killed has left is removed first. An OSError says where.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(folder.with_name("lock"), f"preparing {folder}"):
        if folder.is_dir():  # the process we waited for has made it
            return
        for remains in folder.parent.glob("incomplete.*"):
            shutil.rmtree(remains)
        scratch = tempfile.TemporaryDirectory(prefix="incomplete.", dir=folder.parent)
        try:
            with scratch as name:
                make(Path(name))
        except OSError as error:  # a full disk's word has no name of a file
            if error.errno is None or error.filename:
                raise
            raise OSError(error.errno, error.strerror, str(folder)) from error


def load(
    folder: Path, split: str, make: Callable[[], dict[str, Split]], options: Options
) -> Split:
    """Reads one of the splits that `make` makes if the folder is not there yet.

    `options` are noted in the files for whoever looks into them. Raises DataError for
    damaged files, and OSError where the folder cannot be written.
    """

    def write(scratch: Path) -> None:
        made = scratch / "made"
        made.mkdir()
        for name, each in make().items():
            (made / f"{name}.safetensors").write_bytes(_to_bytes(each, options))
        made.rename(folder)

    make_once(folder, write)
    path = folder / f"{split}.safetensors"
    try:
        if not path.is_file():  # a pipe or a device may never end
            raise ValueError(f"{path.name} is not a regular file")
        return _read(path)
    except MemoryError:
        raise
    except Exception as error:  # whatever safetensors, json and numpy raise
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the {split} split in {folder} is damaged ({reason}): "
            "delete that folder and run again"
        ) from error


def _to_bytes(split: Split, options: Options) -> bytes:
    """The file of a split: its valid tokens one after another, and the rest."""
    width = split.inputs.shape[1]
    starts = range(0, len(split.inputs), ROWS)
    tokens = [
        split.inputs[start : start + ROWS][
            np.arange(width) < split.lengths[start : start + ROWS, None]
        ]
        for start in starts
    ]
    tensors = {
        "tokens": np.concatenate(tokens),
        "lengths": split.lengths,
        "labels": split.labels,
    }
    if split.pairs is not None:
        tensors["pairs"] = split.pairs
    metadata = {
        "width": str(width),
        "sha256": split.content_hash(),
        "options": json.dumps(dict(options)),
    }
    return safetensors.numpy.save(
        {name: np.ascontiguousarray(x) for name, x in tensors.items()}, metadata
    )


def _read(path: Path) -> Split:
    """The split of such a file, after a check of its hash."""
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tokens, lengths = tensors["tokens"], tensors["lengths"]
    width, ends = int(metadata["width"]), np.cumsum(lengths)
    inputs = np.zeros((len(lengths), width), tokens.dtype)
    for row, length, end in zip(inputs, lengths.tolist(), ends.tolist(), strict=True):
        row[:length] = tokens[end - length : end]
    split = Split(inputs, lengths, tensors["labels"], tensors.get("pairs"))
    if split.content_hash() != metadata["sha256"]:
        raise ValueError("its sha256 is not the one noted when it was made")
    return split
