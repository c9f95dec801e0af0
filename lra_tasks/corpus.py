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
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra_tasks import subwords
from lra_tasks.base import Examples, Task
from lra_tasks.errors import DataError
from lra_tasks.paths import PathLike
from lra_tasks.split import SPLITS, Split, report_left_out
from lra_tasks.subwords import TOKENIZER_FILE, Vocabulary

SHARES = (0.8, 0.9)  # of the documents: train below the first, test above the second
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s)|\Z)", re.DOTALL)
Tokens = list[int]


def read_documents(path: Path, blank_lines: bool) -> Iterator[str]:
    """The documents of a file: one, or with `blank_lines` those between blank lines."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            groups = itertools.groupby(
                file, key=lambda line: blank_lines and not line.strip()
            )
            for _, lines in groups:
                if text := "".join(lines).strip():
                    yield text
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None


def split_of(document: str, seed: int) -> str:
    """Train, validation or test, by the document's content: equal ones go together."""
    key = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(8))
    share = int.from_bytes(key.digest()) / 2**64
    return SPLITS[np.searchsorted(SHARES, share, side="right")]


def make_examples(
    sentences: list[Tokens], max_length: int, rng: np.random.Generator
) -> Iterator[tuple[Tokens, Tokens, int]]:
    """Both parts and the label of each row of one document of tokenised sentences.

    Sentences are packed into rows, and a row is cut at a random end into two parts.
    Sentences that overflow a row are longer than average; rows are filled from a random
    end of the document, so that lengths do not give the order away.
    """
    sentences = [sentence for sentence in sentences if sentence]
    if len(sentences) < 2:
        return
    backwards = not rng.integers(2)
    room = max_length - 3
    sentences = _mirrored(sentences) if backwards else sentences
    pieces = chain.from_iterable(split_long(x, room // 2) for x in sentences)
    for row in pack(pieces, room):
        if len(row) > 1:
            row = _mirrored(row) if backwards else row
            cut = rng.integers(1, len(row))
            first, second = list(chain(*row[:cut])), list(chain(*row[cut:]))
            yield (first, second, 1) if rng.integers(2) else (second, first, 0)


def _mirrored(pieces: list[Tokens]) -> list[Tokens]:
    return [piece[::-1] for piece in reversed(pieces)]


def split_long(sentence: Tokens, most: int) -> Iterator[Tokens]:
    """Divides a sentence evenly into as few pieces of `most` tokens as possible."""
    number = -(-len(sentence) // most)
    ends = [len(sentence) * i // number for i in range(number + 1)]
    return (sentence[start:end] for start, end in pairwise(ends))


def pack(pieces: Iterable[Tokens], room: int) -> Iterator[list[Tokens]]:
    """Groups consecutive pieces, as many as fit into `room` tokens."""
    row, size = [], 0
    for piece in pieces:
        if size + len(piece) > room:
            yield row
            row, size = [], 0
        row.append(piece)
        size += len(piece)
    yield row


@dataclass(frozen=True, kw_only=True)
class Corpus(Task):
    """The text of the files below `source_dir` that match `pattern`.

    `documents` is "files", a document a file, or "blank_lines", many in a file between
    blank lines. Of the documents 80 % are train, 10 % validation and 10 % test, drawn
    with `seed`; a document that occurs twice is in one of them, and so is a window.
    `tokenizer` is "bpe", learnt here with `vocab_size` tokens, "byte", or the path of a
    tokenizer.json; with the last two, `vocab_size` is theirs.
    """

    name: ClassVar[str] = "corpus"
    data_version: ClassVar[str] = "1.3.0"
    description: ClassVar[str] = "Two consecutive parts of a text, in order or swapped."
    vocabulary: ClassVar[Vocabulary]
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[Sequence[str]] = ("swapped", "in_order")
    num_texts: ClassVar[int] = 2
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
        wrong = f"pattern must be relative to source_dir, not {self.pattern!r}"
        self.require(not Path(self.pattern).is_absolute(), wrong)
        least, most = len(subwords.SPECIAL) + 256, subwords.MAX_VOCAB_SIZE
        sizes = f"vocab_size must be {least} to {most}, not {self.vocab_size}"
        self.require(least <= self.vocab_size <= most, sizes)
        learnt, vocab_size = self.tokenizer == "bpe", self.vocab_size
        self.use_tokenizer("byte" if learnt else self.tokenizer)
        if learnt:  # its special tokens are byte's
            self._derive("vocab_size", vocab_size)

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """As `Task.load`, but on disk; DataError if the texts of a run have changed."""
        known = self.vocabulary.digest
        loaded = super().load(split, data_dir)
        if self.tokenizer == "bpe":
            self.use_tokenizer(str(self.vocabulary_file(data_dir)))
            same = known in ("byte", self.vocabulary.digest)
            self.require(same, f"{self.source_dir} has other texts than the run's")
        return loaded

    def vocabulary_file(self, data_dir: PathLike | None = None) -> Path | None:
        """As `Task.vocabulary_file`; what is learnt here lies beside the data."""
        if self.tokenizer == "bpe":
            return self.folder(data_dir) / TOKENIZER_FILE
        return super().vocabulary_file(data_dir)

    def cache_key(self) -> dict[str, Any]:
        """As `Task.cache_key`; what is learnt here follows from the other options."""
        key = super().cache_key()
        if self.tokenizer == "bpe":
            key["tokenizer"] = "bpe"
        return key

    def source_files(self) -> list[Path]:
        self.require(self.source_dir is not None, "source_dir must name a folder")
        folder, also = str(self.source_dir), {"recursive": True, "include_hidden": True}
        found = glob.glob(self.pattern, root_dir=folder, **also)  # in links, too
        paths = (Path(folder, x) for x in sorted(found, reverse=True))
        # Of a.txt macOS keeps notes in ._a.txt on other systems' disks.
        paths = (x for x in paths if x.is_file() and not x.name.startswith("._"))
        files = sorted({x.resolve(): x for x in paths}.values())
        self.require(bool(files), f"no files {self.source_dir}/{self.pattern}")
        return files

    def make(self, data_dir: Path, folder: Path) -> Mapping[str, Examples]:
        """Learns the vocabulary; examples are made when they are asked for, in turn."""
        found = [split for split, _ in self._documents()]
        few = f"{len(found):,} documents in {self.source_dir} (pattern {self.pattern})"
        divided = "documents=blank_lines divides files at blank lines"
        self.require({*found} == {*SPLITS}, f"{few} are too few: {divided}")
        if self.tokenizer == "bpe":
            texts = (text for split, text in self._documents() if split == "train")
            subwords.train(texts, self.vocab_size, folder / TOKENIZER_FILE)
            self._derive("vocabulary", Vocabulary(str(folder / TOKENIZER_FILE)))
            learnt = self.vocabulary.vocab_size
            if learnt != self.vocab_size:
                raise DataError(
                    f"{self.name}: {self.source_dir} has only {learnt:,} sub-words: "
                    f"take vocab_size={learnt}, tokenizer=byte or a larger corpus"
                )
        rng, held = np.random.default_rng(self.seed), set()
        # Test wins over validation, both over train.
        return {name: self._examples(name, rng, held) for name in reversed(SPLITS)}

    def _examples(
        self, name: str, rng: np.random.Generator, held: set[bytes]
    ) -> Iterator[tuple[Tokens, int]]:
        """Rows and labels of a split, except windows whose hashes are held.

        The hashes of evaluation's windows, however cut, are held at the end.
        """
        hashes, num_rows, repeated = set(), 0, 0
        for split, document in self._documents():
            if split != name:
                continue
            sentences = self.vocabulary.encode(SENTENCE.findall(document))
            for a, b, label in make_examples(sentences, self.max_length, rng):
                window = repr(a + b if label else b + a).encode()
                key = hashlib.blake2b(window, digest_size=16).digest()
                if key in held:
                    repeated += 1
                    continue
                if name != "train":
                    hashes.add(key)
                num_rows += 1
                yield self.vocabulary.row(a, b, max_length=self.max_length), label
        held |= hashes
        if repeated:
            report_left_out(self.name, name, repeated)
        wanted = f"no document of {name} has two sentences (ended by . ! or ?)"
        self.require(num_rows > 0, f"{wanted} that no other split has")

    def _documents(self) -> Iterator[tuple[str, str]]:
        for path in self.source_files():
            for document in read_documents(path, self.documents == "blank_lines"):
                yield split_of(document, self.seed), document
