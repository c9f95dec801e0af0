"""Corpus: a folder of plain text for masked tokens and sentence order.

An example is `[CLS] a [SEP] b [SEP]`: two consecutive parts of a document, swapped with
probability 1/2 (Lan et al. 2020, arXiv:1909.11942); its label is 1 where they are in
order. Sub-words are learnt on the documents of train and lie beside the data.
"""

import hashlib
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks import archives, subwords
from lra_tasks.base import SPLITS, Task
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, say_left_out
from lra_tasks.storage import PathLike
from lra_tasks.subwords import Vocabulary, open_vocabulary

SHARES = (0.8, 0.9)  # of the documents: train below the first, test above the second
SENTENCE = re.compile(r"\S.*?(?:[.!?][\"'”’)\]]*(?=\s)|\Z)", re.DOTALL)
MAX_DOCUMENT_BYTES = 2**26
VOCABULARY_FILE = "tokenizer.json"


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
    sentences: list[list[int]], max_length: int, rng: np.random.Generator
) -> Iterator[tuple[list[int], list[int], int]]:
    """Both parts and the label of each row of one document of tokenised sentences.

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
            yield first, second, label
        chunk = [] if piece is None else [piece]


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
    version: ClassVar[str] = "1.2.0"
    vocabulary: ClassVar[Vocabulary]
    num_classes: ClassVar[int] = 2
    num_texts: ClassVar[int] = 2
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
        parts = Path(self.pattern).parts
        below = parts and not {"/", ".."} & {*parts}
        globs = all(part == "**" or "**" not in part for part in parts)
        wanted = "pattern must be of names below source_dir, as **/*.txt"
        self.require(bool(below and globs), f"{wanted}, not {self.pattern!r}")
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
        """As `Task.load`; the inputs are mapped from disk, not read into memory."""
        loaded = super().load(split, data_dir)
        if self.tokenizer == "bpe":
            words = self.folder(data_dir) / VOCABULARY_FILE
            self._set(vocabulary=open_vocabulary(str(words)))
        return loaded

    def make(self, data_dir: Path, folder: Path) -> dict[str, Split]:
        return self.make_splits(folder)

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        """As of `Task`; a vocabulary learnt here is written to `data_dir`."""
        counts = Counter(split for split, _ in self._documents())
        self.require(
            all(counts[split] for split in SPLITS),
            f"{counts.total():,} documents in {self.source_dir} (pattern "
            f"{self.pattern}) are too few for {', '.join(SPLITS)}; documents="
            "blank_lines divides files at blank lines",
        )
        learnt = self.tokenizer == "bpe"
        vocabulary = self._learn(data_dir) if learnt else self.vocabulary
        rng, held, splits = np.random.default_rng(self.seed), set(), {}
        with Progress("corpus", counts.total()) as bar:
            for name in reversed(SPLITS):  # test wins over validation, both over train
                examples = self._examples(name, vocabulary, rng, bar)
                splits[name] = self._store(name, examples, held, data_dir)
        return splits

    def _learn(self, data_dir: Path) -> Vocabulary:
        """Sub-words of train, written to `data_dir`."""
        texts = (text for split, text in self._documents() if split == "train")
        subwords.train(texts, self.vocab_size, data_dir / VOCABULARY_FILE)
        vocabulary = Vocabulary(str(data_dir / VOCABULARY_FILE))
        learnt = vocabulary.vocab_size
        self.require(
            learnt == self.vocab_size,
            f"{self.source_dir} has only {learnt:,} sub-words: take "
            f"vocab_size={learnt}, or a larger corpus",
        )
        return vocabulary

    def _examples(
        self, name: str, vocabulary: Vocabulary, rng: np.random.Generator, bar: Progress
    ) -> Iterator[tuple[list[int], int, bytes]]:
        """Rows and labels of a split, and keys of their windows, however cut."""
        for split, document in self._documents():
            if split == name:
                sentences = vocabulary.encode(SENTENCE.findall(document))
                for a, b, label in make_examples(sentences, self.max_length, rng):
                    window = repr(a + b if label else b + a).encode()
                    key = hashlib.blake2b(window, digest_size=16).digest()
                    yield vocabulary.row(a, b, self.max_length), label, key
                bar.update(1)

    def _store(
        self,
        name: str,
        examples: Iterable[tuple[list[int], int, bytes]],
        held: set[bytes],
        data_dir: Path,
    ) -> Split:
        """The split of these examples, but for those whose keys are held.

        Their rows are in a file that goes with them. Their keys are held from then on,
        but for train, the last and largest.
        """
        noted, keys, repeated = array("i"), set(), 0
        with tempfile.TemporaryFile(dir=data_dir) as file:
            for row, label, key in examples:
                if key in held:
                    repeated += 1
                    continue
                if name != "train":
                    keys.add(key)
                padded = row + [0] * (self.max_length - len(row))
                file.write(np.array(padded, np.uint16).tobytes())
                noted.extend((len(row), label))
            held |= keys
            if repeated:
                say_left_out(self.name, name, repeated)
            message = f"no document of {name} has two sentences (ended by . ! or ?)"
            also = " that no other split has" if repeated else ""
            self.require(len(noted) > 0, message + also)
            file.flush()
            lengths, labels = np.array(noted, np.int32).reshape(-1, 2).T
            shape = len(labels), self.max_length
            return Split(np.memmap(file, np.uint16, "r", shape=shape), lengths, labels)

    def _documents(self) -> Iterator[tuple[str, str]]:
        """Documents, each with its split."""
        self.require(self.source_dir is not None, "source_dir must name a folder")
        folder, blank_lines = Path(str(self.source_dir)), self.documents != "files"
        self.require(folder.is_dir(), f"there is no folder {folder}")
        for document in read_documents(folder, self.pattern, blank_lines):
            yield split_of(document, self.seed), document
