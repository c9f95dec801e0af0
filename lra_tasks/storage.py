"""Prepared splits on disk: made once, read whole or not at all.

A dataset is a folder with a safetensors file for each split, made beside its place and
renamed when it is complete. Padding is left out, except where rows are mapped from
disk. The header of each file keeps a sha256 of the split, checked when reading.
"""

import contextlib
import hashlib
import json
import math
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
        except safetensors.SafetensorError as error:
            raise OSError(f"{folder}: {error}") from error
        except OSError as error:  # a full disk's word has no name of a file
            if error.errno is None or error.filename:
                raise
            raise OSError(error.errno, error.strerror, str(folder)) from error


def load(
    folder: Path, split: str, make: Callable[[Path], dict[str, Split]], options: Options
) -> Split:
    """Reads one of the splits that `make` makes if the folder is not there yet.

    `make` gets the folder to be; what it writes there stays, and is checked when a
    split is read, except names that begin with a dot, as NFS gives to files that are
    deleted while open. Inputs that are an np.memmap, of uint16 without pairs, are
    mapped when they are read.
    `options` are noted in the files for whoever looks into them. Raises DataError for
    damaged files, and OSError where the folder cannot be written.
    """

    def write(scratch: Path) -> None:
        made = scratch / "made"
        made.mkdir()
        splits = make(made)
        files = {path.name: _file_sha256(path) for path in made.glob("[!.]*")}
        noted = {"options": json.dumps(dict(options)), "files": json.dumps(files)}
        for name, each in splits.items():
            _write(made / f"{name}.safetensors", each, noted)
        made.rename(folder)

    make_once(folder, write)
    path = folder / f"{split}.safetensors"
    try:
        return _read(_regular(path))
    except MemoryError:
        raise
    except Exception as error:  # whatever safetensors, json and numpy raise
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the {split} split in {folder} is damaged ({reason}): "
            "delete that folder and run again"
        ) from error


def _write(path: Path, split: Split, noted: dict[str, str]) -> None:
    """Writes a split: its valid tokens one after another, or its rows; and the rest."""
    tensors = {"lengths": split.lengths, "labels": split.labels}
    if split.pairs is not None:
        tensors["pairs"] = split.pairs
    if isinstance(split.inputs, np.memmap):
        assert split.inputs.dtype == np.uint16
        tensors["inputs"] = split.inputs
    else:
        rows = zip(split.inputs, split.lengths, strict=True)
        tensors["tokens"] = np.concatenate([row[:length] for row, length in rows])
    whole = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    sealed = {"width": str(split.inputs.shape[1]), "sha256": split.content_hash}
    safetensors.numpy.save_file(whole, path, {**noted, **sealed})


def _read(path: Path) -> Split:
    """The split of such a file, after a check of all hashes."""
    with safetensors.safe_open(path, "np") as file:
        metadata, names = file.metadata(), {*file.keys()}
        tensors = {name: file.get_tensor(name) for name in names - {"inputs"}}
    for name, sha256 in json.loads(metadata.get("files", "{}")).items():
        if _file_sha256(path.with_name(name)) != sha256:
            raise ValueError(f"the sha256 of {name} is not the one noted")
    lengths, tokens = tensors["lengths"], tensors.get("tokens")
    if tokens is None:
        inputs = _map_inputs(path)
    else:
        inputs, shape = tokens, (len(lengths), int(metadata["width"]))
        if tokens.size < math.prod(shape):
            inputs = np.zeros(shape, tokens.dtype)
            parts = np.split(tokens, np.cumsum(lengths))
            for row, part in zip(inputs, parts, strict=False):
                row[: len(part)] = part
        inputs = inputs.reshape(shape)
    split = Split(inputs, lengths, tensors["labels"], tensors.get("pairs"))
    if split.content_hash != metadata["sha256"]:
        raise ValueError("its sha256 is not the one noted when it was made")
    return split


def _map_inputs(path: Path) -> np.memmap:
    """The uint16 inputs of a file, left on disk."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        inputs = json.loads(file.read(size))["inputs"]
    start, shape = 8 + size + inputs["data_offsets"][0], tuple(inputs["shape"])
    return np.memmap(path, np.uint16, "r", start, shape)


def _regular(path: Path) -> Path:
    """The path of a file; a pipe or a device may never end."""
    if not path.is_file():
        raise ValueError(f"{path.name} is not a regular file")
    return path


def _file_sha256(path: Path) -> str:
    with _regular(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
