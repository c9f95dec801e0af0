"""Task: the base class of all tasks. The fields of a subclass are its options."""

import functools
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

import numpy as np

from lra_tasks.archives import Archive, obtain
from lra_tasks.errors import DataError
from lra_tasks.paths import PathLike, get_root, local_path
from lra_tasks.split import SPLITS, Split, remove_overlap, split_off
from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary, open_vocabulary

Examples = Iterable[tuple[Any, int]]  # a split or, made one by one, rows and labels


@dataclass(frozen=True, kw_only=True)
class Task:
    """A classification task over sequences of tokens.

    `source_dir` is a folder of official or own data; None = data_dir. An archive, or
    the folder it unpacks to, is looked for there; then TFDS's dataset; else, without a
    `source_dir`, it is downloaded. A tenth of each class of train, drawn with `seed`,
    is the validation split where none is published.
    """

    name: ClassVar[str]  # in the table of tasks; of its datasets "lra_" + name
    data_version: ClassVar[str]  # of the code that makes the data: raise it with them
    description: ClassVar[str] = ""
    homepage: ClassVar[str] = ""
    citation: ClassVar[str] = ""
    vocab_size: ClassVar[int]  # token ids are 0 to vocab_size - 1
    num_classes: ClassVar[int]  # labels are 0 to num_classes - 1
    label_names: ClassVar[Sequence[str]] = ()  # else they are these numbers
    num_inputs: ClassVar[int] = 1  # sequences in one example, 1 or 2
    num_texts: ClassVar[int] = 1  # texts in one sequence, 1 or 2
    num_labels: ClassVar[int] = 0  # tokens with a label of their own; 0 = one label
    padded: ClassVar[bool] = True  # False: every sequence has max_length tokens
    zero_is_padding: ClassVar[bool] = True  # False: 0 is a token, as a black pixel is
    stays_on_disk: ClassVar[bool] = False  # rows are read when they are needed
    splits: ClassVar[tuple[str, ...]] = SPLITS  # and what else it can be tested on
    seed: ClassVar[int] = 0
    tokenizer: ClassVar[str | None] = None  # "byte" or the path of a tokenizer.json
    vocabulary: ClassVar[Vocabulary | None] = None  # of the tokenizer
    archive: ClassVar[Archive | None] = None  # of its official data
    files: ClassVar[str] = ""  # there or in source_dir, whose change makes other data
    special_tokens: ClassVar[tuple[int, ...]] = ()  # never masked or predicted
    separator: ClassVar[int | None] = None  # [SEP], after which token types change
    augmentations: ClassVar[tuple[str, ...]] = ()  # of train; they keep its labels
    max_length: int  # columns of a split's inputs, padding included
    source_dir: str | None = None

    def __post_init__(self) -> None:
        """Checks the options' types; a subclass goes on to check their values."""
        expected = get_type_hints(type(self))
        for option, value in asdict(self).items():
            kind = expected[option]
            fits = isinstance(value, kind)
            kinds = (kind, *get_args(kind))
            if type(value) is bool:  # which is an int, too
                fits = bool in kinds
            elif type(value) is int and float in kinds:
                fits = True
            name = getattr(kind, "__name__", str(kind))
            self.require(fits, f"{option} must be {name}, not {value!r}")
        self.require(self.max_length >= 1, "max_length must be at least 1")
        self.require(self.seed >= 0, f"seed must be at least 0, not {self.seed}")
        wrong = "source_dir is empty: name a folder, or leave it out"
        self.require(self.source_dir != "", wrong)
        if self.source_dir:  # the same from any working directory
            self._set(source_dir=str(local_path(self.source_dir)))

    def require(self, condition: bool, message: str) -> None:
        """Raises DataError with the task's name and `message` unless `condition`."""
        if not condition:
            raise DataError(f"{self.name}: {message}")

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def use_tokenizer(self, name: str) -> None:
        """Takes "byte" or a tokenizer.json as its vocabulary."""
        self.require(self.max_length >= 8, "max_length must be at least 8")
        vocabulary = open_vocabulary(name)
        self._set(vocabulary=vocabulary, vocab_size=vocabulary.vocab_size)
        self._set(special_tokens=vocabulary.special, separator=vocabulary.sep)

    def vocabulary_file(self, data_dir: PathLike | None = None) -> Path | None:
        """The tokenizer.json of its sub-words; None where it has none."""
        name = self.tokenizer
        if name == "bpe":  # learnt while the data are prepared
            return self.folder(data_dir) / TOKENIZER_FILE
        return None if name in (None, "byte") else Path(name).expanduser()

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint8 if self.vocab_size <= 256 else np.uint16

    @property
    def class_names(self) -> list[str]:
        """The names of its classes, in the order of their numbers."""
        return [*self.label_names] or [str(label) for label in range(self.num_classes)]

    @property
    def mask_token(self) -> int:
        """The id of the mask token: [MASK], or one above the data's own ids."""
        return self.vocabulary.mask if self.vocabulary else self.vocab_size

    def make_splits(self, source: Path) -> dict[str, Split]:
        """Reads its splits from `source`, or draws them, once.

        A tenth of train is held out for each other split that it does not give.
        """
        raise NotImplementedError

    def make(self, data_dir: Path, folder: Path) -> Mapping[str, Examples]:
        """Disjoint splits; files that it writes to `folder` stay beside the data."""
        splits = self.make_splits(self.find_source(data_dir))
        for name in sorted({*self.splits} - {*splits}):
            splits["train"], splits[name] = split_off(splits["train"], self.seed)
        return remove_overlap(self.name, splits)

    def find_source(self, data_dir: Path) -> Path:
        """The official archive, unpacked or packed; or the folder of other sources."""
        if self.archive:
            return obtain(self.archive, data_dir, self.source_dir)
        return Path(self.source_dir or data_dir)

    def decode(self, tokens: np.ndarray) -> str | np.ndarray:
        """The valid tokens `[n]` of a row as text, or as a picture `[R, R]`."""
        if self.vocabulary:
            return self.vocabulary.decode(tokens)
        return tokens.reshape(math.isqrt(len(tokens)), -1)

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `[n, max_length]` and lengths `[n]` of texts, as `decode` shows them.

        For a task of sub-words a text may be a pair of them. DataError if the task's
        inputs are not text, or this text is not one of them.
        """
        if self.vocabulary is None:
            raise DataError(f"{self.name}: its inputs are not made from text")
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        return self.vocabulary.rows(pairs, self.max_length)

    def source_files(self) -> Iterable[Path]:
        """The files in `source_dir` whose change makes other data."""
        path = self.find_source(Path())
        found = path.glob(self.files) if self.files else ()
        # Not what macOS leaves beside files: .DS_Store, ._train.csv.
        files = [file for file in found if not file.name.startswith(".")]
        return [path, *files] if self.archive else files

    def cache_key(self) -> dict[str, Any]:
        """The options that the data depend on, with the state of files they name."""
        key, folder = asdict(self), self.source_dir
        if folder:
            files = [(file, file.stat()) for file in sorted(self.source_files())]
            key["source_dir"] = [
                (os.path.relpath(file, folder), stat.st_size, stat.st_mtime_ns)
                for file, stat in files
            ] or os.path.realpath(folder)
        if self.vocabulary and self.tokenizer != "bpe":  # which is not learnt yet
            key["tokenizer"] = self.vocabulary.digest
        return key

    @functools.cached_property
    def config_name(self) -> str:
        """A short hash of `cache_key`, once for all splits: the config of the data."""
        key = json.dumps(self.cache_key(), sort_keys=True)
        return hashlib.sha256(key.encode()).hexdigest()[:12]

    def folder(self, data_dir: PathLike | None = None) -> Path:
        config = get_root(data_dir) / f"lra_{self.name}" / self.config_name
        return config / self.data_version

    def encode_split(self, texts: Sequence[Any], labels: Sequence[int]) -> Split:
        """Texts, as `encode` takes them, and their labels as a split."""
        return Split(*self.encode(texts), np.array(labels, np.int32))

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """Reads one of `splits`; makes and stores all of them the first time.

        `data_dir` is where prepared data live, and official archives are looked for;
        else $LRA_DATA_DIR, else ~/.cache/lra_tasks. DataError for no such split, wrong
        sources or damaged files; OSError where it cannot be written.
        """
        known = ", ".join(self.splits)
        self.require(split in self.splits, f"no split {split!r}: one of {known}")
        from lra_tasks import storage  # tensorflow-datasets takes 0.3 s to import

        return storage.load(self, split, get_root(data_dir))

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Accuracy on `test`, 0 to 1, of trivial rules fitted on `train`, by name."""
        majority = np.bincount(train.labels, minlength=self.num_classes).argmax()
        return {"majority class": float(np.mean(test.labels == majority))}
