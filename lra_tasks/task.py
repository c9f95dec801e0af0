"""Task: the base class of all tasks; how to get one by its name, or add one."""

import copy
import functools
import hashlib
import importlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
from etils import epath

from lra_tasks import TASKS
from lra_tasks.archives import Archive, obtain
from lra_tasks.errors import DataError
from lra_tasks.paths import PathLike, get_root, local_path
from lra_tasks.split import (
    NO_LABEL,
    SPLITS,
    Examples,
    Split,
    remove_overlap,
    split_off,
)
from lra_tasks.subwords import (
    SPECIAL,
    TOKENIZER_FILE,
    Vocabulary,
    open_vocabulary,
    to_tuples,
)
from nystromformer.validation import check_type, is_same_class


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task over sequences of tokens.

    The fields of a subclass are the task's options, which never change; its class
    attributes and properties say what follows from them. Users call `load`: the first
    time it calls `make`, which calls `make_splits` and makes the splits disjoint, and
    stores them all; later it reads them. Most tasks define `make_splits` alone.

    Attributes:
      max_length: columns of a split's inputs, padding included.
      source_dir: a folder of official or own data; None means `data_dir`. An archive,
        or the folder it unpacks to, is looked for there; then TFDS's dataset;
        otherwise, without a `source_dir`, it is downloaded.
    """

    # Its name in TASKS. The prepared data are called lra_NAME.
    name: ClassVar[str]
    # Increase the version whenever the code makes different data.
    data_version: ClassVar[str]
    description: ClassVar[str] = ""
    homepage: ClassVar[str] = ""
    citation: ClassVar[str] = ""

    # Token ids are 0 to vocab_size - 1, labels 0 to num_classes - 1.
    vocab_size: ClassVar[int]
    num_classes: ClassVar[int]
    # Without names the labels are shown as numbers.
    label_names: ClassVar[Sequence[str]] = ()
    # An example has one or two sequences, and a sequence one or two texts.
    num_inputs: ClassVar[int] = 1
    num_texts: ClassVar[int] = 1
    # The largest number of labelled tokens in an example; 0 = one label per example.
    num_labels: ClassVar[int] = 0
    # Whether the label says if the two texts are in their original order.
    label_is_order: ClassVar[bool] = False

    # False if every sequence has exactly max_length tokens.
    padded: ClassVar[bool] = True
    # False in pictures, where the id 0 is a black pixel.
    zero_is_padding: ClassVar[bool] = True
    # Whether inputs stay on disk and are read when a step needs them.
    stays_on_disk: ClassVar[bool] = False
    # Further test splits, named test_NAME, may follow these three.
    splits: ClassVar[tuple[str, ...]] = SPLITS
    # The seed of splits that are not published: a tenth of each class of train is held
    # out for test, then a tenth of the rest for validation.
    seed: ClassVar[int] = 0

    # "byte" or the path of a tokenizer.json, in tasks of sub-words.
    tokenizer: ClassVar[str | None] = None
    vocabulary: ClassVar[Vocabulary | None] = None
    # The official data, if they are an archive.
    archive: ClassVar[Archive | None] = None
    # A glob of the source files. The data are prepared again if one of them changes.
    files: ClassVar[str] = ""
    # The processes that make the data. None, an option's default, is one here and in
    # training as many as there are cores.
    num_workers: ClassVar[int | None] = 1
    # Options that a task finds, in its source files or by other options, where they are
    # None or 0. A run keeps them in its config, so that its model needs no data.
    found_options: ClassVar[tuple[str, ...]] = ()
    # Names of functions that change examples of train and keep their labels.
    augmentations: ClassVar[tuple[str, ...]] = ()

    max_length: int
    source_dir: str | None = None

    def __post_init__(self) -> None:
        """Checks the options' types; a subclass goes on to check their values."""
        self._check_option_types()
        self.require(self.max_length >= 1, "max_length must be at least 1")
        self.require(
            0 <= self.seed < 2**64, f"seed must be 0 to 2**64 - 1, not {self.seed}"
        )
        self.require(
            self.source_dir != "", "source_dir is empty: name a folder, or leave it out"
        )
        if self.source_dir:
            # The task reads the same folder when the working directory changes.
            self._derive("source_dir", str(local_path(self.source_dir)))

    def _check_option_types(self) -> None:
        """Raises DataError for an option whose value is of a different type."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                # `cache_key` is written as JSON, which knows no numbers of numpy.
                value = value.item()
                self._derive(field.name, value)
            try:
                check_type(field.name, value, hints[field.name])
            except ValueError as error:
                raise DataError(f"{self.name}: {error}") from error

    def require(self, condition: bool, message: str) -> None:
        """Raises DataError with the task's name and `message` unless `condition`."""
        if not condition:
            raise DataError(f"{self.name}: {message}")

    def _derive(self, name: str, value: Any) -> None:
        """Sets a derived attribute; a frozen dataclass forbids plain assignment."""
        object.__setattr__(self, name, value)

    def use_tokenizer(self, name: str) -> None:
        """Takes "byte" or the path of a tokenizer.json as the task's vocabulary.

        Raises:
          DataError: if it is neither, or if no text fits between [CLS] and [SEP].
        """
        self.require(self.max_length >= 8, "max_length must be at least 8")
        vocabulary = open_vocabulary(name)
        self._derive("vocabulary", vocabulary)
        self._derive("vocab_size", vocabulary.vocab_size)

    def vocabulary_file(self, data_dir: PathLike | None = None) -> epath.Path | None:
        """Returns the path of the task's tokenizer.json; None where it has none.

        It may be in a bucket, as the workdir of a pre-training run may.
        """
        if self.tokenizer in (None, "byte"):
            return None
        return epath.Path(self.tokenizer).expanduser()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The type of the inputs.

        Raises:
          DataError: if the largest of them has no room for all ids.
        """
        self.require(
            self.vocab_size <= 2**16,
            f"vocab_size is {self.vocab_size:,}: at most 65,536, as tokens are uint16",
        )
        return np.uint8 if self.vocab_size <= 256 else np.uint16

    @property
    def class_names(self) -> list[str]:
        """The names of the classes, in the order of their numbers."""
        if self.label_names:
            return list(self.label_names)
        return [str(label) for label in range(self.num_classes)]

    @property
    def token_ids(self) -> str:
        """Says in a line what the ids mean, for readers of the prepared data."""
        if self.tokenizer == "byte":
            names = ", ".join(f"{i} {name}" for i, name in enumerate(SPECIAL))
            return f"{names}, then the 256 bytes: 5 + byte"
        if self.tokenizer is not None:
            return (
                f"sub-words of {TOKENIZER_FILE}, which lies beside the data or the run"
            )
        if not self.zero_is_padding:
            return "intensities, 0 is black"
        return f"0 padding, 1 to {self.vocab_size - 1} tokens"

    @property
    def special_tokens(self) -> tuple[int, ...]:
        """The ids that are no text: they are never masked or predicted."""
        return self.vocabulary.special if self.vocabulary else ()

    @property
    def separator(self) -> int | None:
        """The id of [SEP], after which the token type changes."""
        return self.vocabulary.sep if self.vocabulary else None

    @property
    def mask_token(self) -> int:
        """The id of the mask token: [MASK], or one above the data's own ids."""
        return self.vocabulary.mask if self.vocabulary else self.vocab_size

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """Reads a split; the first time it makes and stores all splits.

        Args:
          split: one of `splits`.
          data_dir: where prepared data are kept and official archives are looked for;
            else $LRA_DATA_DIR, else ~/.cache/lra_tasks.

        Returns:
          The split, in memory or, with `stays_on_disk`, read row by row.

        Raises:
          DataError: for no such split, wrong sources or damaged files.
          OSError: where it cannot be written.
        """
        self.require(
            split in self.splits,
            f"no split {split!r}: one of {', '.join(self.splits)}",
        )
        from lra_tasks import storage  # It imports tensorflow-datasets, for 0.3 s.

        return storage.load(self, split, get_root(data_dir))

    def make(self, data_dir: Path, folder: Path) -> Mapping[str, Examples]:
        """Makes disjoint splits for `load` to store.

        Args:
          data_dir: where official archives are looked for, without a `source_dir`.
          folder: what the task writes into it stays beside the stored data.

        Returns:
          The examples of each split.
        """
        splits = self.make_splits(self.find_source(data_dir))
        self.require("train" in splits, "no split train: is source_dir right?")
        for name in sorted(set(self.splits) - set(splits)):
            splits["train"], splits[name] = split_off(splits["train"], self.seed)
        return remove_overlap(self.name, splits)

    def make_splits(self, source: Path) -> dict[str, Split]:
        """Reads the published splits from `source`, or draws all splits.

        A split that it does not return is held out from train.
        """
        raise NotImplementedError

    def find_source(self, data_dir: Path) -> Path:
        """Finds the official archive, unpacked or packed; or the folder of other data.

        Raises:
          DataError: if the archive is not there and cannot be downloaded.
        """
        if self.archive:
            return obtain(self.archive, data_dir, self.source_dir)
        return Path(self.source_dir or data_dir)

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Makes rows of token ids from texts, written as `decode` shows them.

        Args:
          texts: n texts; in a task of sub-words a text may be a pair of them.

        Returns:
          The inputs `[n, max_length]` and their lengths `[n]`.

        Raises:
          DataError: if the task's inputs are not text, or a text is not one of them.
        """
        if self.vocabulary is None:
            raise DataError(
                f"{self.name}: its inputs are not made from text: in Python give their "
                "ids, run.predict(inputs, lengths)"
            )
        return self.vocabulary.rows(to_tuples(texts), self.max_length)

    def with_more_room(self) -> Self:
        """Returns the task with room for one token more; a text that was cut fills it.

        Its vocabulary is the same.
        """
        task = copy.copy(self)
        # A frozen dataclass forbids plain assignment.
        object.__setattr__(task, "max_length", self.max_length + 1)
        return task

    def encode_split(self, texts: Sequence[Any], labels: Sequence[int]) -> Split:
        """Makes a split of texts, as `encode` takes them, and their labels."""
        inputs, lengths = self.encode(texts)
        return Split(inputs, lengths, np.array(labels, np.int32))

    def decode(self, tokens: np.ndarray) -> str | np.ndarray:
        """Shows the valid tokens `[n]` of a row as a text, or as a picture `[R, R]`."""
        if self.vocabulary:
            return self.vocabulary.decode(tokens)
        return tokens.reshape(math.isqrt(len(tokens)), -1)

    def source_files(self) -> Iterable[Path]:
        """Finds the files whose change makes other data; it needs a `source_dir`."""
        source = self.find_source(Path())  # It looks into source_dir alone.
        paths = source.glob(self.files) if self.files else []
        # macOS leaves .DS_Store and ._train.csv beside the files.
        files = [path for path in paths if not path.name.startswith(".")]
        # A packed archive, or the folder of TFDS's dataset, stands for its files.
        if self.archive and not files:
            files = [source]
        return files

    def cache_key(self) -> dict[str, Any]:
        """Returns the options that the data depend on, with the state of their files.

        A subclass leaves out those that change no data.
        """
        key = asdict(self)
        if self.source_dir:
            states = []
            for file in sorted(self.source_files()):
                state = file.stat()
                path = os.path.relpath(file, self.source_dir)
                states.append((path, state.st_size, state.st_mtime_ns))
            key["source_dir"] = states or os.path.realpath(self.source_dir)
        if self.vocabulary:
            key["tokenizer"] = self.vocabulary.digest
        return key

    @functools.cached_property
    def config_name(self) -> str:
        """A short hash of `cache_key`, which names the folder of the data.

        It is computed once: all splits come from the same state of the files.
        """
        key = json.dumps(self.cache_key(), sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:12]

    def folder(self, data_dir: PathLike | None = None) -> Path:
        """Returns where the prepared data lie, or will lie."""
        root = get_root(data_dir)
        return root / f"lra_{self.name}" / self.config_name / self.data_version

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Scores trivial rules, which a model has to beat.

        Returns:
          The name of each rule and its accuracy on `test`, 0 to 1, fitted on `train`.
          Where tokens are labelled, only tokens with a label count.
        """
        train_labels = train.labels[train.labels != NO_LABEL]
        test_labels = test.labels[test.labels != NO_LABEL]
        majority = np.bincount(train_labels, minlength=self.num_classes).argmax()
        return {"majority class": float(np.mean(test_labels == majority))}


def get_task(name: str, /, **options: Any) -> Task:
    """Makes the task of that name.

    Args:
      name: one of TASKS.
      **options: fields of its class.

    Raises:
      DataError: for an unknown name or option, or a value of wrong type or no sense.
    """
    task = task_class(name)
    known_options = [field.name for field in fields(task)]
    unknown_options = [option for option in options if option not in known_options]
    if unknown_options:
        raise DataError(
            f"{name} has no option {', '.join(unknown_options)}: its options are "
            f"{', '.join(known_options)}"
        )
    return task(**options)


def task_class(name: str) -> type[Task]:
    """Returns the class of the task of that name, for which its module is imported.

    Raises:
      DataError: for a name that is none of TASKS.
    """
    if name not in TASKS:
        raise DataError(f"unknown task {name!r}: one of {', '.join(TASKS)}")
    entry = TASKS[name]
    if isinstance(entry, str):
        module, class_name = entry.split(":")
        return getattr(importlib.import_module(module), class_name)
    return entry


def register_task(name: str, task: type[Task]) -> None:
    """Adds a task of another package to the table; a config may import it.

    A module that is imported again, under any name and from any folder, may register
    its task again, and so may a cell of a notebook.

    Args:
      name: the task's name, which its data have too.
      task: the class, whose attribute `name` is the same.

    Raises:
      DataError: if the two names differ, or the name is another class's.
    """
    if getattr(task, "name", None) != name:
        raise DataError(
            f"{task} must have the attribute name = {name!r}, which names its data; or "
            "register it under the name that it has"
        )
    if name in TASKS and not is_same_class(task_class(name), task):
        raise DataError(
            f"the name {name!r} is taken by {task_class(name)}: give your task another "
            "name"
        )
    TASKS[name] = task


def default_options(name: str) -> dict[str, Any]:
    """Returns the defaults of a task's options, by keys such as "task.seed".

    They are in the types of JSON. A task that is not loaded has none.
    """
    if name not in TASKS:
        return {}
    defaults = {
        f"task.{field.name}": field.default
        for field in fields(task_class(name))
        if field.default is not MISSING
    }
    return json.loads(json.dumps(defaults))
