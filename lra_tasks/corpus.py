"""Corpus: a folder of plain text for masked tokens and sentence order.

An example is `[CLS] a [SEP] b [SEP]`: two consecutive parts of a document, swapped with
probability 1/2 (Lan et al. 2020, arXiv:1909.11942); its label is 1 where they are in
order. Sub-words are learnt on the documents of train and lie beside the data.
"""

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks import archives, storage, subwords
from lra_tasks.base import SPLITS, Task
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split
from lra_tasks.storage import PathLike
from lra_tasks.subwords import Vocabulary, open_vocabulary

SHARES = (0.8, 0.9)  # of the documents: train below the first, test above the second
SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+")
MAX_DOCUMENT_BYTES = 2**26
DIGESTS_FILE, VOCABULARY_FILE = "sha256.json", "tokenizer.json"


def read_documents(folder: Path, pattern: str, blank_lines: bool) -> Iterator[str]:
    """The documents of the files that match, in the order of their names.

    With `blank_lines` a file holds many, between blank lines; else it is one. DataError
    names a file that is no regular one, no UTF-8 text, or has too long a document.
    """
    for path in sorted(folder.glob(pattern)):
        if path.is_dir():
            continue
        with archives.open_regular(path) as file:
            content = bytearray()
            while line := file.readline(MAX_DOCUMENT_BYTES):
                content += line
                if len(content) > MAX_DOCUMENT_BYTES:
                    message = f"a document of over {MAX_DOCUMENT_BYTES:,} bytes"
                    raise DataError(f"{path} holds {message}: divide it")
                if blank_lines and not line.strip():
                    yield from _decode(content, path)
                    content.clear()
            yield from _decode(content, path)


def _decode(content: bytearray, path: Path) -> Iterator[str]:
    text = archives.as_text(content, path).strip()
    if "\0" in text:
        raise DataError(f"{path} is not text: it has a zero byte")
    if text:
        yield text


def split_of(document: str, seed: int) -> str:
    """Train, validation or test, by the document's content: equal ones go together."""
    key = hashlib.blake2b(document.encode(), digest_size=8, salt=seed.to_bytes(8))
    share = int.from_bytes(key.digest()) / 2**64
    return SPLITS[np.searchsorted(SHARES, share, side="right")]


def make_examples(
    sentences: list[list[int]],
    vocabulary: Vocabulary,
    max_length: int,
    rng: np.random.Generator,
) -> Iterator[tuple[list[int], int]]:
    """Rows and labels of one document of tokenised sentences.

    Sentences are taken while they fit, and cut at a random end into two parts; those
    of over half a row are divided evenly first. From the front or from the back, by a
    coin: a sentence that fits no more begins the next row and is longer than most, and
    is to be first as often as last, or lengths would give the order away.
    """
    sentences = [sentence for sentence in sentences if sentence]
    if len(sentences) < 2:
        return
    step = 1 if rng.integers(2) else -1
    room = max_length - 3
    pieces: list[list[int]] = []
    for sentence in sentences:
        number = -(-len(sentence) // (room // 2))
        rest = number - 1 if step < 0 else 0  # rounded in the mirror as well
        ends = [(len(sentence) * i + rest) // number for i in range(number + 1)]
        pieces += [sentence[start:end] for start, end in pairwise(ends)]
    chunk: list[list[int]] = []
    for piece in [*pieces[::step], None]:
        if piece is not None and sum(map(len, chunk)) + len(piece) <= room:
            chunk.append(piece)
            continue
        if len(chunk) > 1:
            chunk, cut = chunk[::step], rng.integers(1, len(chunk))
            first, second = list(chain(*chunk[:cut])), list(chain(*chunk[cut:]))
            label = int(rng.integers(2))
            if not label:
                first, second = second, first
            yield vocabulary.row(first, second, max_length), label
        chunk = [] if piece is None else [piece]


@dataclass(frozen=True, kw_only=True)
class Corpus(Task):
    """The text of the files below `source_dir` that match `pattern`.

    `documents` is "files", a document a file, or "blank_lines", many in a file between
    blank lines. Of the documents 80 % are train, 10 % validation and 10 % test, drawn
    with `seed`; a document that occurs twice is in one of them. `tokenizer` is "bpe",
    learnt here with `vocab_size` tokens, "byte", or the path of a tokenizer.json; with
    the last two, `vocab_size` is theirs.
    """

    name: ClassVar[str] = "corpus"
    version: ClassVar[str] = "1.0.0"
    vocabulary: ClassVar[Vocabulary]
    num_classes: ClassVar[int] = 2
    source_dir: str | None = None
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
        least, most = len(subwords.SPECIAL) + 256, subwords.MAX_VOCAB_SIZE
        sizes = f"vocab_size must be {least} to {most}, not {self.vocab_size}"
        self.require(least <= self.vocab_size <= most, sizes)
        learnt, vocab_size = self.tokenizer == "bpe", self.vocab_size
        self._use_tokenizer("byte" if learnt else self.tokenizer, min_length=8)
        if learnt:  # its special tokens are byte's
            self._set(vocab_size=vocab_size)

    def vocabulary_file(self, data_dir: PathLike | None = None) -> Path | None:
        """As of `Task`; a vocabulary learnt here exists once the data are prepared."""
        if self.tokenizer == "bpe":
            return self.folder(data_dir) / VOCABULARY_FILE
        return super().vocabulary_file(data_dir)

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        """As `Task.load`; the arrays are mapped from disk, not read into memory."""
        self.require(split in SPLITS, f"no split {split!r}: one of {', '.join(SPLITS)}")
        folder = self.folder(data_dir)
        storage.make_once(folder, lambda scratch: self._prepare(folder, scratch))
        try:
            if self.tokenizer == "bpe":
                self._set(vocabulary=open_vocabulary(str(folder / VOCABULARY_FILE)))
            with archives.open_regular(folder / DIGESTS_FILE) as file:
                noted = json.load(file)
            path = folder / f"{split}.bin"
            for name in {path.name, VOCABULARY_FILE} & noted.keys():
                if _sha256(folder / name) != noted[name]:
                    raise ValueError(f"the sha256 of {name} is not the one noted")
        except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
            raise DataError(
                f"the {split} split in {folder} is damaged ({error}): delete that "
                "folder and run again"
            ) from error
        records = np.memmap(path, self._record(), "r")
        return Split(*(records[column] for column in ("inputs", "lengths", "labels")))

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        return {split: self.load(split, data_dir) for split in SPLITS}

    def _record(self) -> np.dtype:
        """An example on disk."""
        inputs = ("inputs", np.uint16, (self.max_length,))
        return np.dtype([inputs, ("lengths", np.int32), ("labels", np.int32)])

    def _documents(self) -> Iterator[tuple[str, str]]:
        """Documents, each with its split."""
        self.require(self.source_dir is not None, "source_dir must name a folder")
        folder, blank_lines = Path(str(self.source_dir)), self.documents != "files"
        self.require(folder.is_dir(), f"there is no folder {folder}")
        for document in read_documents(folder, self.pattern, blank_lines):
            yield split_of(document, self.seed), document

    def _prepare(self, folder: Path, scratch: Path) -> None:
        counts = Counter(split for split, _ in self._documents())
        self.require(
            all(counts[split] for split in SPLITS),
            f"{counts.total():,} documents in {self.source_dir} (pattern "
            f"{self.pattern}) are too few for {', '.join(SPLITS)}; documents="
            "blank_lines divides files at blank lines",
        )
        made, vocabulary = scratch / "made", self.vocabulary
        made.mkdir()
        if self.tokenizer == "bpe":
            texts = (text for split, text in self._documents() if split == "train")
            subwords.train(texts, self.vocab_size, made / VOCABULARY_FILE)
            vocabulary = Vocabulary(str(made / VOCABULARY_FILE))
        self._write(made, vocabulary, counts.total())
        digests = {path.name: _sha256(path) for path in made.iterdir()}
        (made / DIGESTS_FILE).write_text(json.dumps(digests), encoding="utf-8")
        made.rename(folder)

    def _write(self, folder: Path, vocabulary: Vocabulary, total: int) -> None:
        """Writes all examples as they come."""
        rng = np.random.default_rng(self.seed)
        paths = {split: folder / f"{split}.bin" for split in SPLITS}
        with contextlib.ExitStack() as stack, Progress("corpus", total) as bar:
            files = {k: stack.enter_context(p.open("wb")) for k, p in paths.items()}
            for split, document in self._documents():
                sentences = vocabulary.encode(SENTENCE_END.split(document))
                rows = make_examples(sentences, vocabulary, self.max_length, rng)
                for row, label in rows:
                    padded = row + [vocabulary.pad] * (self.max_length - len(row))
                    record = np.array((padded, len(row), label), self._record())
                    files[split].write(record.tobytes())
                bar.update(1)
        for split, path in paths.items():
            message = f"no document of {split} has two sentences (ended by . ! or ?)"
            self.require(path.stat().st_size > 0, message)


def _sha256(path: Path) -> str:
    with archives.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
