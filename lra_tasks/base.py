"""Task: the base class of all tasks. The fields of a subclass are its options."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

import numpy as np

from lra_tasks import storage
from lra_tasks.split import DataError, Split
from lra_tasks.storage import PathLike
from lra_tasks.subwords import Vocabulary, open_vocabulary

SPLITS: tuple[str, ...] = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A classification task over sequences of tokens."""

    name: ClassVar[str]  # in the table of tasks, and of its folder
    version: ClassVar[str]  # of the code that makes the data: raised when they change
    vocab_size: ClassVar[int]  # token ids are 0 to vocab_size - 1
    num_classes: ClassVar[int]  # labels are 0 to num_classes - 1
    num_inputs: ClassVar[int] = 1  # sequences in one example, 1 or 2
    num_texts: ClassVar[int] = 1  # texts in one sequence, 1 or 2
    vocabulary: ClassVar[Vocabulary | None] = None  # where tokens are sub-words
    max_length: int  # columns of a split's inputs, padding included

    def __post_init__(self) -> None:
        """Checks the options' types; a subclass goes on to check their values."""
        expected = get_type_hints(type(self))
        for option, value in asdict(self).items():
            fits = isinstance(value, expected[option])
            if not fits or (isinstance(value, bool) and expected[option] is not bool):
                kind = getattr(expected[option], "__name__", str(expected[option]))
                raise DataError(f"{self.name}: {option} must be {kind}, not {value!r}")
        self.require(self.max_length >= 1, "max_length must be at least 1")
        num_bytes = getattr(self, "num_bytes", None)
        fits = num_bytes is None or num_bytes >= 1
        self.require(fits, f"num_bytes must be at least 1, not {num_bytes}")
        seed = getattr(self, "seed", 0)
        self.require(0 <= seed < 2**63, f"seed must be 0 to 2⁶³-1, not {seed}")
        if source_dir := getattr(self, "source_dir", None):  # the same from anywhere
            self._set(source_dir=str(Path(source_dir).expanduser().absolute()))

    def require(self, condition: bool, message: str) -> None:
        """Raises DataError with the task's name and `message` unless `condition`."""
        if not condition:
            raise DataError(f"{self.name}: {message}")

    def _set(self, **attributes: Any) -> None:
        """Sets attributes that follow from the options."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def _use_tokenizer(self, name: str, min_length: int) -> None:
        """Takes "byte" or a tokenizer.json as its vocabulary."""
        fits = self.max_length >= min_length
        self.require(fits, f"max_length must be at least {min_length}")
        vocabulary = open_vocabulary(name)
        self._set(vocabulary=vocabulary, vocab_size=vocabulary.vocab_size)

    def vocabulary_file(self, data_dir: PathLike | None = None) -> Path | None:
        """The tokenizer.json of its sub-words; None where it has none."""
        name = getattr(self, "tokenizer", None)
        return None if name in (None, "byte") else Path(str(name)).expanduser()

    @property
    def special_tokens(self) -> tuple[int, ...]:
        """Ids without content, which are never masked or predicted."""
        return self.vocabulary.special if self.vocabulary else ()

    @property
    def mask_token(self) -> int:
        """The id of the mask token: [MASK], or one above the data's own ids."""
        return self.vocabulary.mask if self.vocabulary else self.vocab_size

    @property
    def separator(self) -> int | None:
        """The id of [SEP], after which token types change; None without types."""
        return self.vocabulary.sep if self.vocabulary else None

    @abstractmethod
    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        """Makes all splits, once; archives are in `data_dir`, or go there."""

    def make(self, data_dir: Path, folder: Path) -> dict[str, Split]:
        """As `make_splits`; what else it writes to `folder` stays beside the data."""
        return self.make_splits(data_dir)

    def decode(self, tokens: np.ndarray) -> str | np.ndarray:
        """The valid tokens `[n]` of a row as text, or as a picture `[R, R]`."""
        assert self.vocabulary is not None, f"{type(self)} does not say how to decode"
        return self.vocabulary.decode(tokens)

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Inputs `[n, max_length]` and lengths `[n]` of texts, as `decode` shows them.

        For a task of sub-words a text may be a pair of them.

        Raises:
          DataError: the task's inputs are no text, or this is none of its language.
        """
        if self.vocabulary is None:
            raise DataError(f"{self.name}: its inputs are not made from text")
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        return self.vocabulary.rows(pairs, self.max_length)

    def pinned_options(self) -> dict[str, Any]:
        """The options that the prepared data depend on.

        A tokenizer.json counts by its content, and links by what they lead to.
        """
        options = asdict(self)
        if options.get("source_dir"):
            options["source_dir"] = str(Path(options["source_dir"]).resolve())
        if options.get("num_bytes", 1) is None:  # data of earlier versions stay
            del options["num_bytes"]
        tokenizer = options.pop("tokenizer", None)
        if tokenizer is None:
            return options
        learnt_here = tokenizer == "bpe"
        digest = tokenizer if learnt_here else open_vocabulary(tokenizer).digest
        return options | {"tokenizer": digest}

    def folder(self, data_dir: PathLike | None = None) -> Path:
        """The folder of its prepared data."""
        options = self.pinned_options()
        return storage.get_folder(self.name, options, self.version, data_dir)

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """Reads one of SPLITS; makes and stores all of them the first time.

        `data_dir` is where prepared data live, and official archives are looked for;
        else $LRA_DATA_DIR, else ~/.cache/lra_tasks.

        Raises:
          DataError: no such split; the sources are wrong, or the stored files damaged.
          OSError: `data_dir` cannot be written, or the disk is full.
        """
        self.require(split in SPLITS, f"no split {split!r}: one of {', '.join(SPLITS)}")
        make = functools.partial(self.make, storage.get_root(data_dir))
        folder = self.folder(data_dir)
        return storage.load(folder, split, make, self.pinned_options())

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Accuracy on `test`, 0 to 1, of trivial rules fitted on `train`, by name."""
        majority = np.bincount(train.labels, minlength=self.num_classes).argmax()
        return {"majority class": float(np.mean(test.labels == majority))}
