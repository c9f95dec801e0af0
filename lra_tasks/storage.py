"""Prepared splits on disk: made once, read back whole or not at all.

A dataset is a folder that tensorflow-datasets (tfds) builds beside its place and
renames when it is complete; one file a split, each record a block of many rows,
padding left out. metadata.json keeps a sha256 of every split, checked when reading.
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
import tensorflow_datasets as tfds
from absl import logging
from filelock import FileLock, Timeout

from lra_tasks.split import DataError, Split

BLOCK_BYTES = 2**21
PathLike = str | os.PathLike[str]
Options = Mapping[str, Any]  # JSON values


def get_root(data_dir: PathLike | None = None) -> Path:
    """`data_dir`, else $LRA_DATA_DIR, else ~/.cache/lra_tasks."""
    root = data_dir or os.environ.get("LRA_DATA_DIR") or "~/.cache/lra_tasks"
    return Path(root).expanduser().absolute()


def get_folder(
    name: str, options: Options, version: str, data_dir: PathLike | None = None
) -> Path:
    """Where a dataset lies: name, options (JSON values) and version pin it."""
    key = hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()[:16]
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

    `options` are noted in the dataset for whoever looks into it. Raises DataError for
    damaged files, and OSError where the folder cannot be written.
    """
    make_once(folder, lambda scratch: _write(folder, make(), options, scratch))
    try:
        with _quiet():
            return _read(folder, split)
    except MemoryError:
        raise
    except Exception as error:  # whatever tfds, array_record and protobuf raise
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"the {split} split in {folder} is damaged ({reason}): "
            "delete that folder and run again"
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps tfds from logging every step of its own."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


class _Info(tfds.core.DatasetInfo):
    def initialize_from_bucket(self) -> None:
        """Asks no server for a dataset that is made here."""


class _Builder(tfds.core.ShardBasedBuilder, skip_registration=True):
    """Writes ready-made splits.

    Shard-based, because GeneratorBasedBuilder shuffles the records, for which it
    needs TensorFlow beyond 1 GB.
    """

    def __init__(
        self, folder: Path, splits: dict[str, Split], options: Options
    ) -> None:
        self.name = folder.parents[1].name  # pyright: ignore[reportAttributeAccessIssue]
        self._splits, self._options = splits, options
        config = tfds.core.BuilderConfig(name=folder.parent.name, version=folder.name)
        super().__init__(data_dir=folder.parents[2], config=config)

    def _log_download_bytes(self) -> None:
        """Prints nothing; nothing is downloaded."""

    _log_download_done = _log_download_bytes

    def _info(self) -> tfds.core.DatasetInfo:
        def column(dtype: Any, *shape: int) -> tfds.features.Tensor:
            shape = (None, *shape)  # pyright: ignore[reportAssignmentType]
            return tfds.features.Tensor(shape=shape, dtype=dtype, encoding="bytes")

        (token_type,) = {split.inputs.dtype.type for split in self._splits.values()}
        columns = {
            "tokens": column(token_type),
            "lengths": column(np.int32),
            "labels": column(np.int32),
            "pairs": column(np.int32, 2),
        }
        summaries = {
            name: {
                "shape": split.inputs.shape,
                "dtype": split.inputs.dtype.name,
                "paired": split.pairs is not None,
                "sha256": split.content_hash(),
            }
            for name, split in self._splits.items()
        }
        metadata = {"options": dict(self._options), "splits": summaries}
        return _Info(
            builder=self,
            features=tfds.features.FeaturesDict(columns),
            metadata=tfds.core.MetadataDict(metadata),
        )

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, list[Any]]:
        return {
            name: [lambda split=split: enumerate(_blocks(split))]
            for name, split in self._splits.items()
        }


def _blocks(split: Split) -> Iterator[dict[str, np.ndarray]]:
    """Cuts every column into as many blocks; where one ends early, empty ones."""
    width = split.inputs.shape[1]
    rows = max(1, BLOCK_BYTES // (width * split.inputs.itemsize))
    pairs = np.zeros((0, 2), np.int32) if split.pairs is None else split.pairs
    for start in range(0, max(len(split.inputs), len(split.labels)), rows):
        block = slice(start, start + rows)
        lengths = split.lengths[block]
        yield {
            "tokens": split.inputs[block][np.arange(width) < lengths[:, None]],
            "lengths": lengths,
            "labels": split.labels[block],
            "pairs": pairs[block],
        }


def _write(
    folder: Path, splits: dict[str, Split], options: Options, scratch: Path
) -> None:
    with _quiet():
        try:
            _Builder(folder, splits, options).download_and_prepare(
                file_format="array_record",
                download_dir=scratch,  # tfds wants one, empty as it stays
                download_config=tfds.download.DownloadConfig(try_download_gcs=False),
            )
        except RuntimeError as error:  # array_record's word for a full disk
            raise OSError(f"{folder}: {str(error).partition(';')[0]}") from error


def _read(folder: Path, name: str) -> Split:
    """Puts the blocks of one split together again and checks their hash."""
    for path in folder.iterdir():
        if not path.is_file():  # a pipe or a device may never end
            raise ValueError(f"{path.name} is no regular file")
    _refuse_foreign_classes(folder / "features.json")
    builder = tfds.builder_from_directory(folder)
    summary = (builder.info.metadata or {})["splits"][name]
    rows, width = summary["shape"]
    inputs = np.zeros((rows, width), summary["dtype"])
    columns: dict[str, list[np.ndarray]] = {"lengths": [], "labels": [], "pairs": []}
    row = 0
    for block in builder.as_data_source(name):  # pyright: ignore[reportCallIssue]
        window = inputs[row : row + len(block["lengths"])]
        window[np.arange(width) < block["lengths"][:, None]] = block["tokens"]
        row += len(window)
        for key, parts in columns.items():
            parts.append(block[key])
    lengths, labels, pairs = (np.concatenate(parts) for parts in columns.values())
    split = Split(inputs, lengths, labels, pairs if summary["paired"] else None)
    if split.content_hash() != summary["sha256"]:
        raise ValueError("its sha256 is not the one noted when it was made")
    return split


def _refuse_foreign_classes(path: Path) -> None:
    """Raises ValueError for a class that is not of tfds, which would import it."""

    def check(node: dict[str, Any]) -> None:
        for key in ("pythonClassName", "type"):  # the second as old versions wrote it
            name = str(node.get(key, "tensorflow_datasets."))
            if not name.startswith("tensorflow_datasets."):
                raise ValueError(f"{name} is no class of tensorflow_datasets")

    json.loads(path.read_text(encoding="utf-8"), object_hook=check)
