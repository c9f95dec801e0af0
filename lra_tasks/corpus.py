"""Corpus: a folder of plain text for masked tokens and sentence order.

An example is `[CLS] a [SEP] b [SEP]`: two consecutive parts of a document, swapped with
probability 1/2 (Lan et al. 2020, arXiv:1909.11942); its label is 1 where they are in
order. Sub-words are learnt on the documents of train and lie beside the data.
"""

import glob
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from etils import epath

from lra_tasks import subwords
from lra_tasks.errors import DataError
from lra_tasks.paths import PathLike
from lra_tasks.split import SPLITS, Examples, Split, report_left_out
from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary
from lra_tasks.task import Task

# Of all documents those below the first share are train, above the second test.
SHARES = (0.8, 0.9)
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s)|\Z)", re.DOTALL)
Tokens = list[int]


@dataclass(frozen=True, kw_only=True)
class Corpus(Task):
    """The text of the files below `source_dir` that match `pattern`.

    `seed` decides which documents are train (80 %), validation (10 %) and test (10 %).
    Equal documents are in the same split. A passage that documents of several splits
    share is in one of them: in test rather than validation, and in both rather than
    train.

    Attributes:
      pattern: a glob, relative to `source_dir`.
      documents: "files", if every file is a document; "blank_lines", if blank lines
        divide a file into documents.
      tokenizer: "bpe", sub-words that are learnt here; "byte"; or the path of a
        tokenizer.json.
      vocab_size: the number of sub-words to learn. With a tokenizer other than "bpe"
        it becomes that tokenizer's own.
      max_length: the columns of a row, with [CLS] and both [SEP].
      seed: also draws where a text is cut, and which parts are swapped.
    """

    name: ClassVar[str] = "corpus"
    data_version: ClassVar[str] = "1.3.0"
    description: ClassVar[str] = "Two consecutive parts of a text, in order or swapped."
    vocabulary: ClassVar[Vocabulary]
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[Sequence[str]] = ("swapped", "in_order")
    num_texts: ClassVar[int] = 2
    label_is_order: ClassVar[bool] = True
    stays_on_disk: ClassVar[bool] = True
    pattern: str = "**/*.txt"
    documents: str = "files"
    tokenizer: str = "bpe"
    vocab_size: int = 8192
    max_length: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = ("files", "blank_lines")
        self.require(self.documents in kinds, f"documents must be one of {kinds}")
        self.require(
            not Path(self.pattern).is_absolute(),
            f"pattern must be relative to source_dir, not {self.pattern!r}",
        )
        smallest = subwords.BYTE_VOCAB_SIZE
        largest = subwords.MAX_VOCAB_SIZE
        self.require(
            smallest <= self.vocab_size <= largest,
            f"vocab_size must be {smallest} to {largest}, not {self.vocab_size}",
        )
        if self.tokenizer == "bpe":
            # Sub-words have the same special tokens as bytes, so until they are learnt
            # the task has the vocabulary of bytes, but for its size.
            vocab_size = self.vocab_size
            self.use_tokenizer("byte")
            self._derive("vocab_size", vocab_size)
        else:
            self.use_tokenizer(self.tokenizer)

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """As `Task.load`; the inputs stay on disk.

        With tokenizer="bpe" it also sets `vocabulary`, until then that of bytes, to the
        one that is learnt.

        Raises:
          DataError: also if the texts are not those that a run has learnt its sub-words
            on.
        """
        digest_before = self.vocabulary.digest
        loaded = super().load(split, data_dir)
        if self.tokenizer == "bpe":
            self.use_tokenizer(str(self.vocabulary_file(data_dir)))
            self.require(
                digest_before in ("byte", self.vocabulary.digest),
                f"{self.source_dir} has other texts than those that the run has learnt "
                "its sub-words on: restore them, or start a new run",
            )
        return loaded

    def vocabulary_file(self, data_dir: PathLike | None = None) -> epath.Path | None:
        """As `Task.vocabulary_file`; what is learnt here lies beside the data."""
        if self.tokenizer == "bpe":
            return epath.Path(self.folder(data_dir) / TOKENIZER_FILE)
        return super().vocabulary_file(data_dir)

    def cache_key(self) -> dict[str, Any]:
        """As `Task.cache_key`; what is learnt here follows from the other options."""
        key = super().cache_key()
        if self.tokenizer == "bpe":
            key["tokenizer"] = "bpe"
        return key

    def source_files(self) -> list[Path]:
        """Finds the files that match the pattern, in linked folders too, each once.

        Raises:
          DataError: without `source_dir`, or if no file matches.
        """
        self.require(self.source_dir is not None, "source_dir must name a folder")
        folder = str(self.source_dir)
        names = glob.glob(
            self.pattern, root_dir=folder, recursive=True, include_hidden=True
        )
        # Of several paths to one file the first in order stays.
        path_of = {}
        for name in sorted(names, reverse=True):
            path = Path(folder, name)
            # On other systems' disks macOS keeps notes about a.txt in ._a.txt.
            if path.is_file() and not path.name.startswith("._"):
                path_of[path.resolve()] = path
        files = sorted(path_of.values())
        self.require(bool(files), f"no files {self.source_dir}/{self.pattern}")
        return files

    def make(self, data_dir: Path, folder: Path) -> Mapping[str, Examples]:
        """Learns the vocabulary, and returns generators of examples.

        Read the generators in the order of the result: test, validation, train. They
        share one random generator, and each leaves out the passages of those before it.
        """
        splits = [split for split, _ in self._documents()]
        has_all_splits = set(splits) == set(SPLITS)
        if self.documents == "files":
            self.require(
                has_all_splits,
                f"{len(splits):,} documents in {self.source_dir} (pattern "
                f"{self.pattern}) are too few for three splits: add files, or set "
                "documents=blank_lines, which divides files at blank lines",
            )
        else:
            self.require(
                has_all_splits,
                f"{len(splits):,} documents in {self.source_dir} (pattern "
                f"{self.pattern}, divided at blank lines) are too few for three "
                "splits: add text",
            )
        if self.tokenizer == "bpe":
            self._learn_vocabulary(folder / TOKENIZER_FILE)

        rng = np.random.default_rng(self.seed)
        evaluation_passages: set[bytes] = set()
        return {
            split: self._make_split(split, rng, evaluation_passages)
            for split in reversed(SPLITS)
        }

    def _learn_vocabulary(self, file: Path) -> None:
        """Learns the sub-words on train, and writes them to `file`."""
        texts = (text for split, text in self._documents() if split == "train")
        subwords.train(texts, self.vocab_size, file)
        self._derive("vocabulary", Vocabulary(str(file)))
        num_learnt = self.vocabulary.vocab_size
        self.require(
            num_learnt == self.vocab_size,
            f"{self.source_dir} has only {num_learnt:,} sub-words: take "
            f"vocab_size={num_learnt}, tokenizer=byte or a larger corpus",
        )

    def _make_split(
        self, split: str, rng: np.random.Generator, evaluation_passages: set[bytes]
    ) -> Iterator[tuple[Tokens, int]]:
        """Yields the rows and labels of a split.

        A passage is the tokens of both parts in their original order, so that a
        different cut or order does not hide that it is repeated.

        Args:
          split: the name of the split.
          rng: draws the cuts and the orders.
          evaluation_passages: digests of the passages of the splits before this one,
            which are left out here. At the end those of this split are added, unless it
            is train. Within one split a passage may be repeated.

        Raises:
          DataError: at the end, if there is no row.
        """
        passages: set[bytes] = set()
        num_rows = 0
        num_repeated = 0
        for first, second, label in self._make_examples(split, rng):
            passage = first + second if label else second + first
            digest = hashlib.blake2b(repr(passage).encode(), digest_size=16).digest()
            if digest in evaluation_passages:
                num_repeated += 1
                continue
            if split != "train":
                passages.add(digest)
            num_rows += 1
            yield self.vocabulary.row(first, second, max_length=self.max_length), label

        evaluation_passages |= passages
        if num_repeated:
            report_left_out(self.name, split, num_repeated)
        self.require(
            num_rows > 0,
            f"no document of {split} has two sentences (ended by . ! or ?) that no "
            "other split has",
        )

    def _make_examples(
        self, split: str, rng: np.random.Generator
    ) -> Iterator[tuple[Tokens, Tokens, int]]:
        """Yields both parts and the label of each example, in the documents' order."""
        for document_split, document in self._documents():
            if document_split == split:
                sentences = self.vocabulary.encode(SENTENCE.findall(document))
                yield from make_examples(sentences, self.max_length, rng)

    def _documents(self) -> Iterator[tuple[str, str]]:
        """Yields the split and the text of each document."""
        for path in self.source_files():
            for document in read_documents(path, self.documents == "blank_lines"):
                yield split_of(document, self.seed), document


def read_documents(path: Path, blank_lines: bool) -> Iterator[str]:
    """Yields the documents of a file.

    Args:
      path: the file.
      blank_lines: whether blank lines separate documents; otherwise the file is one.

    Raises:
      DataError: if the file is not UTF-8.
    """

    def is_between(line: str) -> bool:
        return blank_lines and not line.strip()

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for _, lines in itertools.groupby(file, key=is_between):
                text = "".join(lines).strip()
                if text:
                    yield text
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None


def split_of(document: str, seed: int) -> str:
    """Returns train, validation or test, by the document's content.

    Equal documents are in the same split.
    """
    digest = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(8))
    share = int.from_bytes(digest.digest()) / 2**64
    return SPLITS[np.searchsorted(SHARES, share, side="right")]


def make_examples(
    sentences: list[Tokens], max_length: int, rng: np.random.Generator
) -> Iterator[tuple[Tokens, Tokens, int]]:
    """Makes the rows of one document: two parts that follow one another, or swapped.

    Sentences are packed into rows, and a row is cut at a random end into two parts.
    A sentence that does not fit any more begins the next row, so the first sentence of
    a row is longer than average. Rows are filled from a random end of the document;
    otherwise this would give the order away.

    Args:
      sentences: the tokens of each sentence.
      max_length: the length of a row with [CLS] and two [SEP].
      rng: draws the end, the cuts and the order.

    Yields:
      Both parts of a row, and its label: 1 if they are in order.
    """
    sentences = [sentence for sentence in sentences if sentence]
    if len(sentences) < 2:
        return
    is_backwards = not rng.integers(2)
    num_tokens = max_length - 3
    if is_backwards:
        sentences = _mirror(sentences)

    pieces = [
        piece
        for sentence in sentences
        for piece in split_long(sentence, num_tokens // 2)
    ]
    for row in pack(pieces, num_tokens):
        if len(row) < 2:
            continue
        if is_backwards:
            row = _mirror(row)
        cut = rng.integers(1, len(row))
        first = list(itertools.chain.from_iterable(row[:cut]))
        second = list(itertools.chain.from_iterable(row[cut:]))
        if rng.integers(2):
            yield first, second, 1
        else:
            yield second, first, 0


def _mirror(pieces: list[Tokens]) -> list[Tokens]:
    """Reverses the order of the pieces, and of the tokens within each."""
    return [piece[::-1] for piece in reversed(pieces)]


def split_long(sentence: Tokens, max_tokens: int) -> list[Tokens]:
    """Divides a sentence evenly into as few pieces of `max_tokens` as possible."""
    num_pieces = -(-len(sentence) // max_tokens)
    ends = [len(sentence) * i // num_pieces for i in range(num_pieces + 1)]
    return [sentence[start:end] for start, end in itertools.pairwise(ends)]


def pack(pieces: Iterable[Tokens], num_tokens: int) -> Iterator[list[Tokens]]:
    """Groups consecutive pieces, as many as have `num_tokens` tokens together."""
    row: list[Tokens] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > num_tokens:
            yield row
            row = []
            size = 0
        row.append(piece)
        size += len(piece)
    yield row
