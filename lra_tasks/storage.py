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
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_datasets as tfds
from filelock import FileLock
from google.protobuf import json_format
from tensorflow_datasets.core.dataset_info import DatasetInfoFileError
from tqdm import tqdm

from lra_tasks.errors import DataError
from lra_tasks.split import NO_LABEL, SPLITS, Examples, Split, pad

if TYPE_CHECKING:  # task.py imports this file
    from lra_tasks.task import Task

# The errors that libraries raise for damaged, missing or foreign dataset files. Other
# errors, such as a missing library or permission, are no reason to delete data.
DAMAGE = (
    RuntimeError,  # that of array_record
    ValueError,
    KeyError,
    FileNotFoundError,
    json_format.ParseError,
    DatasetInfoFileError,
)
OFFLINE = tfds.download.DownloadConfig(try_download_gcs=False)
# The names of a record's tokens, by the number of the task's inputs.
INPUT_NAMES = {1: ["tokens"], 2: ["tokens1", "tokens2"]}
ROWS_AT_A_TIME = 4096
TOKENS_AT_A_TIME = 2**22


class Builder(tfds.core.ShardBasedBuilder, skip_registration=True):
    """Writes `lra_TASK`: the examples in their order, one file for each split."""

    def __init__(self, task: "Task", root: Path):
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
            metadata=tfds.core.MetadataDict(
                options=dataclasses.asdict(self.task),
                vocab_size=self.task.vocab_size,
                token_ids=self.task.token_ids,
            ),
        )
        # TFDS would ask a server for it.
        setattr(info, "initialize_from_bucket", lambda: None)  # noqa: B010
        return info

    def _shard_iterators_per_split(self, dl_manager: Any) -> dict[str, Any]:
        splits = self.task.make(self.root, Path(self.data_path))
        _check_split_names(self.task, splits)
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
        bar = iter(tqdm(examples, split, disable=None, leave=False))
        for chunk in _chunks(bar, self.task.num_inputs):
            columns = _check_examples(self.task, split, chunk)
            for values in zip(*columns.values(), strict=True):
                record.update(zip(columns, values, strict=True))
                yield keyed_record

    def _create_builder_config(self, builder_config: Any, version: Any) -> Any:
        return builder_config  # TFDS would warn that it does not know it.

    def _make_download_manager(self, **_: Any) -> Any:
        return types.SimpleNamespace(downloaded_size=0)  # TFDS would make a folder.

    def _log_download_bytes(self) -> None: ...
    def _log_download_done(self) -> None: ...


def _features(task: "Task") -> dict[str, Any]:
    """The features of a record, the label first."""
    tokens = tfds.features.Tensor(shape=(None,), dtype=task.dtype, encoding="bytes")
    if task.num_labels:
        label: Any = tfds.features.Tensor(
            shape=(None,), dtype=np.int32, encoding="bytes"
        )
    else:
        label = tfds.features.ClassLabel(names=task.class_names)
    return {
        "labels" if task.num_labels else "label": label,
        **dict.fromkeys(INPUT_NAMES[task.num_inputs], tokens),
    }


def prepare(task: "Task", root: Path) -> Path:
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


def load(task: "Task", split: str, root: Path) -> Split:
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


def _read(source: Any, task: "Task") -> Split:
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


def _read_pairs(source: Any, task: "Task") -> Split:
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


class Rows:
    """The inputs of a split that stay on disk: `rows[[3, 5]]` reads `[2, L]`.

    The index is one that numpy takes for the first axis: numbers, a mask or a slice.
    """

    def __init__(self, source: Any, width: int, dtype: Any):
        """Takes a TFDS data source, whose records have `tokens`.

        Args:
          source: the data source.
          width: L, to which rows are padded.
          dtype: the type of the inputs.
        """
        self.source = source
        self.dtype = np.dtype(dtype)
        self.shape = (len(source), width)
        self.size = len(source) * width
        self._numbers = np.arange(len(source), dtype=np.int32)
        self._thread = ThreadPoolExecutor(1)
        # The numbers of the rows that the thread reads, and what it has read.
        self._prefetched = np.empty(0, np.int64)
        self._future = Future[np.ndarray]()

    def __len__(self) -> int:
        return len(self.source)

    def prefetch(self, rows: np.ndarray) -> None:
        """Starts reading `rows`, int `[n]`, in a thread, for an index to come."""
        self._prefetched = rows
        self._future = self._thread.submit(self._read, rows)

    def __getitem__(self, rows: Any) -> np.ndarray:
        numbers = self._numbers[rows]
        flat = numbers.reshape(-1)
        # The next chunk may turn out shorter than the one that was prefetched: then it
        # is the beginning of it.
        is_prefetched = np.array_equal(self._prefetched[: flat.size], flat)
        if flat.size and is_prefetched:
            tokens = self._future.result()[: flat.size]
        else:
            tokens = self._read(flat)
        return tokens.reshape(*numbers.shape, self.shape[1])

    def _read(self, rows: np.ndarray) -> np.ndarray:
        records = self.source.__getitems__(rows.tolist())
        inputs, _ = pad(
            [record["tokens"] for record in records], self.shape[1], self.dtype
        )
        return inputs


def _check_split_names(task: "Task", made_names: Iterable[str]) -> None:
    """Checks that a task makes the splits that it names, and that they have a use.

    A run trains on train, validates on validation, and is tested on all others.

    Raises:
      DataError: for other names.
    """
    further_names = task.splits[len(SPLITS) :]
    has_three = tuple(task.splits[: len(SPLITS)]) == SPLITS
    if not has_three or not all(name.startswith("test_") for name in further_names):
        raise DataError(
            f"{task.name}: the class attribute splits is {task.splits}: begin it with "
            f"{SPLITS}, and each further name with test_"
        )
    if set(made_names) != set(task.splits):
        raise DataError(
            f"{task.name}: it makes the splits {', '.join(made_names)}, but its class "
            f"attribute splits is {task.splits}: rename them here or there"
        )


def _chunks(
    examples: Iterable[tuple[Any, Any]], num_inputs: int
) -> Iterator[list[tuple[Any, Any]]]:
    """Collects examples as arrays, a few thousand and a few million tokens at a time.

    They are copied, since whoever makes them may fill one array again and again.
    """
    chunk: list[tuple[Any, Any]] = []
    num_tokens = 0
    for tokens, label in examples:
        parts = tokens if num_inputs == 2 else (tokens,)
        copies = tuple(np.array(part) for part in parts)
        num_tokens += sum(copy.size for copy in copies)
        chunk.append((copies if num_inputs == 2 else copies[0], np.array(label)))
        if len(chunk) == ROWS_AT_A_TIME or num_tokens > TOKENS_AT_A_TIME:
            yield chunk
            chunk = []
            num_tokens = 0
    if chunk:
        yield chunk


def _check_examples(
    task: "Task", split: str, examples: Sequence[tuple[Any, Any]]
) -> dict[str, Iterable[np.ndarray]]:
    """Checks examples, and returns each feature of all their records.

    Raises:
      DataError: if tokens or labels do not fit.
    """
    all_tokens, labels = zip(*examples, strict=True)
    columns = [all_tokens]
    if task.num_inputs == 2:
        columns = list(zip(*all_tokens, strict=True))
    features: dict[str, Any] = {
        name: _check_tokens(task, split, column)
        for name, column in zip(INPUT_NAMES[task.num_inputs], columns, strict=True)
    }
    if task.num_labels:
        [tokens] = features.values()
        features["labels"] = _check_token_labels(task, split, labels, tokens)
    else:
        features["label"] = _check_classes(task, split, np.array(labels))
    return features


def _check_tokens(
    task: "Task", split: str, sequences: Iterable[Any]
) -> list[np.ndarray]:
    """Returns the tokens of sequences in the task's type.

    Raises:
      DataError: if they do not fit: in that type they would be other tokens.
    """
    sequences = [np.asarray(sequence) for sequence in sequences]
    lengths = [len(sequence) for sequence in sequences]
    if max(lengths) > task.max_length:
        raise DataError(
            f"{task.name}: {split} has {max(lengths):,} tokens in a sequence, over "
            f"max_length={task.max_length}: cut it, or raise max_length"
        )
    ids = _concatenate(sequences)
    if ids.dtype.kind not in "iu":
        raise DataError(
            f"{task.name}: {split} has tokens of {ids.dtype}: they must be integers"
        )
    misfit = _find_misfit(ids, task.vocab_size)
    if misfit is not None:
        raise DataError(
            f"{task.name}: {split} has the token id {misfit}: "
            f"vocab_size={task.vocab_size} has 0 to {task.vocab_size - 1}"
        )
    # Text has 257 ids in uint8, since no text has the largest one.
    tokens = ids.astype(task.dtype)
    if not np.array_equal(tokens, ids):
        raise DataError(
            f"{task.name}: {split} has the token id {ids.max()}, which is too large "
            f"for {tokens.dtype}: override the property dtype"
        )
    return np.split(tokens, np.cumsum(lengths)[:-1])


def _check_token_labels(
    task: "Task", split: str, labels: Iterable[Any], sequences: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Returns the labels of the tokens of sequences as int32.

    Raises:
      DataError: if there is not one for each token, or more than num_labels of them, or
        a label that is no class.
    """
    labels = [np.asarray(each) for each in labels]
    for token_labels, tokens in zip(labels, sequences, strict=True):
        if token_labels.shape != tokens.shape:
            raise DataError(
                f"{task.name}: {split} has labels of shape {token_labels.shape} for "
                f"{len(tokens)} tokens: give each token one, {NO_LABEL} for none"
            )
        num_labels = np.count_nonzero(token_labels != NO_LABEL)
        if num_labels > task.num_labels:
            raise DataError(
                f"{task.name}: {split} has {num_labels} labels in a sequence, over "
                f"num_labels={task.num_labels}: raise num_labels"
            )
    all_labels = _concatenate(labels)
    _check_classes(task, split, all_labels[all_labels != NO_LABEL])
    return [token_labels.astype(np.int32) for token_labels in labels]


def _check_classes(task: "Task", split: str, labels: np.ndarray) -> np.ndarray:
    """Returns labels as int32.

    Raises:
      DataError: for a label that is no class, where TFDS itself takes -1 for any class.
    """
    if labels.dtype.kind not in "iub":
        raise DataError(
            f"{task.name}: {split} has labels of {labels.dtype}: they must be integers"
        )
    misfit = _find_misfit(labels, task.num_classes)
    if misfit is not None:
        raise DataError(
            f"{task.name}: {split} has the label {misfit}: "
            f"num_classes={task.num_classes} has 0 to {task.num_classes - 1}"
        )
    return labels.astype(np.int32)


def _concatenate(rows: Iterable[np.ndarray]) -> np.ndarray:
    """All numbers of some rows; an empty row is no reason to take them for floats."""
    return np.concatenate([np.empty(0, np.uint8), *(row for row in rows if len(row))])


def _find_misfit(numbers: np.ndarray, end: int) -> int | None:
    """The first of some numbers that is not 0 to end − 1; None if there is none."""
    is_misfit = (numbers < 0) | (numbers >= end)
    if not is_misfit.any():
        return None
    return numbers[is_misfit].flat[0]
