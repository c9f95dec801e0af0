"""The tasks' data on disk: tensorflow-datasets in array_record files, no TensorFlow.

One record is one example without padding: `tokens` and `label`, or in a task of two
inputs `tokens1`, `tokens2` and `label`. Where tokens have labels of their own, `labels`
has one for each token, -1 for none. Any program can read a prepared folder:

    tfds.builder_from_directory(folder).as_data_source("train")[0]
"""

import dataclasses
import functools
import shutil
import types
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from filelock import FileLock
from google.protobuf import json_format
from tensorflow_datasets.core.dataset_info import DatasetInfoFileError
from tqdm import tqdm

from lra_tasks.base import Examples, Task
from lra_tasks.errors import DataError
from lra_tasks.split import NO_LABEL, Split, pad

OFFLINE = tfds.download.DownloadConfig(try_download_gcs=False)
INPUT_NAMES = {1: ["tokens"], 2: ["tokens1", "tokens2"]}  # by the number of inputs
ROWS_AT_A_TIME = 4096
# What the libraries raise for files that are damaged, missing or another's. The rest,
# as a library or a permission that is missing, is no reason to delete prepared data.
DAMAGE = (
    RuntimeError,  # of array_record
    ValueError,
    KeyError,
    FileNotFoundError,
    json_format.ParseError,
    DatasetInfoFileError,
)


class Builder(tfds.core.ShardBasedBuilder, skip_registration=True):
    """Writes `lra_TASK`: the examples in their order, one file for each split."""

    def __init__(self, task: Task, root: Path):
        self.task, self.root = task, root
        setattr(self, "name", f"lra_{task.name}")  # noqa: B010 - a class attribute of TFDS
        version = tfds.core.Version(task.data_version)
        config = tfds.core.BuilderConfig(name=task.config_name, version=version)
        super().__init__(data_dir=root, config=config, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        task = self.task
        tokens = tfds.features.Tensor(shape=(None,), dtype=task.dtype, encoding="bytes")
        features = dict.fromkeys(INPUT_NAMES[task.num_inputs], tokens)
        label: Any = tfds.features.Tensor(
            shape=(None,), dtype=np.int32, encoding="bytes"
        )
        if not task.num_labels:
            label = tfds.features.ClassLabel(names=task.class_names)
        info = tfds.core.DatasetInfo(
            builder=self,
            description=task.description,
            homepage=task.homepage,
            citation=task.citation,
            features=tfds.features.FeaturesDict({label_name(task): label, **features}),
            metadata=tfds.core.MetadataDict(options=dataclasses.asdict(task)),
        )
        setattr(info, "initialize_from_bucket", lambda: None)  # noqa: B010 - no server
        return info

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, Any]:
        made = self.task.make(self.root, Path(self.data_path))
        return {
            name: [functools.partial(self._write, name, examples)]
            for name, examples in made.items()
        }

    def _write(self, name: str, examples: Examples) -> Iterator[tuple[int, Any]]:
        """Yields one object again and again: to count them, TFDS keeps all it gets."""
        names, keyed = INPUT_NAMES[self.task.num_inputs], (0, {})
        of_label = label_name(self.task)
        for rows, label in tqdm(examples, name, disable=None, leave=False):
            tokens = rows if len(names) == 2 else [np.array(rows, self.task.dtype)]
            keyed[1].update(zip(names, tokens, strict=True))
            keyed[1][of_label] = np.array(label, np.int32)
            yield keyed

    def _create_builder_config(self, builder_config: Any, version: Any) -> Any:
        return builder_config  # without a warning that TFDS does not know it

    def _make_download_manager(self, **_: Any) -> Any:  # makes no folder for downloads
        return types.SimpleNamespace(downloaded_size=0)

    def _log_download_bytes(self) -> None: ...
    def _log_download_done(self) -> None: ...


def label_name(task: Task) -> str:
    """The name of a record's label, or of the labels of its tokens."""
    return "labels" if task.num_labels else "label"


def prepare(task: Task, root: Path) -> Path:
    """Makes all splits of a task unless they are there; returns their folder.

    One process prepares, others wait. The folder is renamed when it is complete, and
    what a killed process left is removed. OSError where it cannot be written.
    """
    folder = task.folder(root)
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name("lock")):
            for remains in folder.parent.glob("incomplete.*"):
                shutil.rmtree(remains)
            try:
                Builder(task, root).download_and_prepare(download_config=OFFLINE)
            except RuntimeError as error:  # array_record's word for a full disk
                raise OSError(f"{folder} cannot be written: {error}") from error
    return folder


def load(task: Task, split: str, root: Path) -> Split:
    """Reads a split, prepared if it is not there; DataError if it is damaged."""
    folder = prepare(task, root)
    try:
        builder: Any = tfds.builder_from_directory(folder)
        return _read(builder.as_data_source(split), task)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{folder} is damaged or no dataset of {task.name} ({reason}): "
            "delete that folder and run again"
        ) from error


def _read(source: Any, task: Task) -> Split:
    """The split of a data source; of two inputs, equal documents are one row."""
    number, width, dtype = len(source), task.max_length, task.dtype
    labels, lengths = np.empty((2, number), np.int32)
    if task.num_inputs == 2:
        row_of: dict[bytes, int] = {}
        pairs = np.empty((number, 2), np.int32)
        for i, record in enumerate(_records(source)):
            labels[i] = record["label"]
            texts = [record[name].tobytes() for name in INPUT_NAMES[task.num_inputs]]
            pairs[i] = [row_of.setdefault(text, len(row_of)) for text in texts]
        documents = [np.frombuffer(document, dtype) for document in row_of]
        return Split(*pad(documents, width, dtype), labels, pairs)
    if task.num_labels:
        labels = np.full((number, width), NO_LABEL, np.int32)
    on_disk = task.stays_on_disk
    inputs = Rows(source, width, dtype) if on_disk else np.zeros((number, width), dtype)
    for i, record in enumerate(_records(source)):
        tokens = record["tokens"]
        lengths[i] = len(tokens)
        if task.num_labels:
            labels[i, : len(tokens)] = record["labels"]
        else:
            labels[i] = record["label"]
        if isinstance(inputs, np.ndarray):
            inputs[i, : len(tokens)] = tokens
    return Split(inputs, lengths, labels)


def _records(source: Any) -> Iterator[dict[str, Any]]:
    """Yields all records of a data source in their order."""
    for start in range(0, len(source), ROWS_AT_A_TIME):
        rows = range(start, min(start + ROWS_AT_A_TIME, len(source)))
        yield from source.__getitems__([*rows])


class Rows:
    """The inputs of a split that stay on disk: `rows[[3, 5]]` reads `[2, L]`.

    The index is one that numpy takes for the first axis: numbers, a mask or a slice.
    """

    def __init__(self, source: Any, width: int, dtype: Any):
        self.source, self.shape = source, (len(source), width)
        self.dtype, self.size = np.dtype(dtype), len(source) * width
        self._numbers = np.arange(len(source), dtype=np.int32)
        self._thread = ThreadPoolExecutor(1)
        self._ahead, self._future = np.empty(0, np.int64), Future[np.ndarray]()

    def __len__(self) -> int:
        return len(self.source)

    def prefetch(self, rows: np.ndarray) -> None:
        """Starts reading `rows`, int `[n]`, in a thread, for an index to come."""
        self._ahead, self._future = rows, self._thread.submit(self._read, rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        numbers = self._numbers[rows]
        flat = numbers.reshape(-1)
        is_ahead = flat.size and np.array_equal(self._ahead[: flat.size], flat)
        read = self._future.result()[: flat.size] if is_ahead else self._read(flat)
        return read.reshape(*numbers.shape, self.shape[1])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        records = self.source.__getitems__(rows.tolist())
        tokens = [record["tokens"] for record in records]
        return pad(tokens, self.shape[1], self.dtype)[0]
