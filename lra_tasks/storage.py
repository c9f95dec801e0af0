"""The tasks' data on disk: tensorflow-datasets in array_record files, no TensorFlow.

One record is one example without padding: `tokens` and `label`, or in a task of two
inputs `tokens1`, `tokens2` and `label`. Where tokens have labels of their own, `labels`
has one for each token, -1 for none. Any program can read a prepared folder:

    tfds.builder_from_directory(folder).as_data_source("train")[0]
"""

import dataclasses
import functools
import shutil
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from filelock import FileLock
from tqdm import tqdm

from lra_tasks.base import Examples, Task
from lra_tasks.damage import DAMAGE
from lra_tasks.errors import DataError
from lra_tasks.example_checks import check_labels, check_split_names, check_tokens
from lra_tasks.rows_on_disk import Rows
from lra_tasks.split import NO_LABEL, Split, pad

OFFLINE = tfds.download.DownloadConfig(try_download_gcs=False)
# The names of a record's tokens, by the number of the task's inputs.
INPUT_NAMES = {1: ["tokens"], 2: ["tokens1", "tokens2"]}
ROWS_AT_A_TIME = 4096


class Builder(tfds.core.ShardBasedBuilder, skip_registration=True):
    """Writes `lra_TASK`: the examples in their order, one file for each split."""

    def __init__(self, task: Task, root: Path):
        self.task = task
        self.root = root
        setattr(self, "name", f"lra_{task.name}")  # noqa: B010 - TFDS has it on the class
        config = tfds.core.BuilderConfig(
            name=task.config_name, version=tfds.core.Version(task.data_version)
        )
        super().__init__(data_dir=root, config=config, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        info = tfds.core.DatasetInfo(
            builder=self,
            description=self.task.description,
            homepage=self.task.homepage,
            citation=self.task.citation,
            features=tfds.features.FeaturesDict(_features(self.task)),
            metadata=tfds.core.MetadataDict(options=dataclasses.asdict(self.task)),
        )
        # TFDS would ask a server for it.
        setattr(info, "initialize_from_bucket", lambda: None)  # noqa: B010
        return info

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, Any]:
        splits = self.task.make(self.root, Path(self.data_path))
        check_split_names(self.task, splits)
        return {
            name: [functools.partial(self._records, name, examples)]
            for name, examples in splits.items()
        }

    def _records(self, split: str, examples: Examples) -> Iterator[tuple[int, Any]]:
        """Yields each example as a key and a record; all are one object, filled anew.

        TFDS keeps a list of what it gets, to count it. With one object the memory stays
        constant.
        """
        record: dict[str, np.ndarray] = {}
        keyed_record = (0, record)
        names = INPUT_NAMES[self.task.num_inputs]
        for tokens, label in tqdm(examples, split, disable=None, leave=False):
            sequences = [tokens] if len(names) == 1 else tokens
            for name, sequence in zip(names, sequences, strict=True):
                record[name] = check_tokens(self.task, split, sequence)
            record[label_name(self.task)] = check_labels(
                self.task, split, label, num_tokens=len(record[names[0]])
            )
            yield keyed_record

    def _create_builder_config(self, builder_config: Any, version: Any) -> Any:
        return builder_config  # TFDS would warn that it does not know it.

    def _make_download_manager(self, **_: Any) -> Any:
        return types.SimpleNamespace(downloaded_size=0)  # TFDS would make a folder.

    def _log_download_bytes(self) -> None: ...
    def _log_download_done(self) -> None: ...


def _features(task: Task) -> dict[str, Any]:
    """The features of a record, the label first."""
    tokens = tfds.features.Tensor(shape=(None,), dtype=task.dtype, encoding="bytes")
    if task.num_labels:
        label: Any = tfds.features.Tensor(
            shape=(None,), dtype=np.int32, encoding="bytes"
        )
    else:
        label = tfds.features.ClassLabel(names=task.class_names)
    return {
        label_name(task): label,
        **dict.fromkeys(INPUT_NAMES[task.num_inputs], tokens),
    }


def label_name(task: Task) -> str:
    """Returns the name of a record's label, or of the labels of its tokens."""
    return "labels" if task.num_labels else "label"


def prepare(task: Task, root: Path) -> Path:
    """Makes and stores all splits of a task unless they are there.

    One process prepares, others wait. The folder is renamed when it is complete, and
    what a killed process left is removed.

    Args:
      task: the task.
      root: the folder of all data.

    Returns:
      The folder of the prepared data.

    Raises:
      DataError: if the sources are missing or wrong.
      OSError: where the folder cannot be written.
    """
    folder = task.folder(root)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name("lock")):
        for remains in folder.parent.glob("incomplete.*"):
            shutil.rmtree(remains)
        try:
            Builder(task, root).download_and_prepare(download_config=OFFLINE)
        except RuntimeError as error:
            # The writer of records raises it for a full disk. Any other place that does
            # is a task with a bug, whose traceback is wanted.
            last_frame = traceback.extract_tb(error.__traceback__)[-1]
            if "tensorflow_datasets" not in last_frame.filename:
                raise
            raise OSError(f"{folder} cannot be written: {error}") from error
    return folder


def load(task: Task, split: str, root: Path) -> Split:
    """Reads a split, prepared if it is not there.

    Raises:
      DataError: if the sources are missing or wrong, or the prepared data damaged.
      OSError: where they cannot be written.
    """
    folder = prepare(task, root)
    try:
        builder: Any = tfds.builder_from_directory(folder)
        source = builder.as_data_source(split)
        read = _read_pairs if task.num_inputs == 2 else _read
        return read(source, task)
    except DAMAGE as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{folder} is damaged or no dataset of {task.name} ({reason}): "
            "delete that folder and run again"
        ) from error


def _read(source: Any, task: Task) -> Split:
    """Reads a split of one input."""
    num_examples = len(source)
    width = task.max_length
    lengths = np.empty(num_examples, np.int32)
    if task.num_labels:
        labels = np.full((num_examples, width), NO_LABEL, np.int32)
    else:
        labels = np.empty(num_examples, np.int32)
    if task.stays_on_disk:
        inputs = Rows(source, width, task.dtype)
    else:
        inputs = np.zeros((num_examples, width), task.dtype)

    for i, record in enumerate(_read_records(source)):
        tokens = record["tokens"]
        lengths[i] = len(tokens)
        if task.num_labels:
            labels[i, : len(tokens)] = record["labels"]
        else:
            labels[i] = record["label"]
        if isinstance(inputs, np.ndarray):
            inputs[i, : len(tokens)] = tokens
    return Split(inputs, lengths, labels)


def _read_pairs(source: Any, task: Task) -> Split:
    """Reads a split of two inputs, in which equal documents become one row."""
    row_of: dict[bytes, int] = {}
    labels = np.empty(len(source), np.int32)
    pairs = np.empty((len(source), 2), np.int32)
    for i, record in enumerate(_read_records(source)):
        labels[i] = record["label"]
        for side, name in enumerate(INPUT_NAMES[2]):
            document = record[name].tobytes()
            pairs[i, side] = row_of.setdefault(document, len(row_of))

    documents = [np.frombuffer(document, task.dtype) for document in row_of]
    inputs, lengths = pad(documents, task.max_length, task.dtype)
    return Split(inputs, lengths, labels, pairs)


def _read_records(source: Any) -> Iterator[dict[str, Any]]:
    """Yields all records of a data source in their order."""
    for start in range(0, len(source), ROWS_AT_A_TIME):
        end = min(start + ROWS_AT_A_TIME, len(source))
        yield from source.__getitems__(list(range(start, end)))
