"""Text and Retrieval: is a film review positive? Does one paper cite the other?

Byte by byte, as in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): the first
4,000 bytes of the 50,000 labelled IMDb reviews of Maas et al. 2011, `<br />` and all,
and of both papers of pairs of the ACL Anthology Network (Radev et al. 2013). A byte's
token is its value plus one; 0 is padding.
"""

import string
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tqdm import tqdm

from lra_tasks import archives
from lra_tasks.archives import LRA_RELEASE, UNPACKED, Archive
from lra_tasks.base import Task
from lra_tasks.errors import DataError
from lra_tasks.split import Split, pad

BYTES = 257  # the size of the vocabulary of bytes
REVIEW = r"(?:^|/){}/(neg|pos)/[^/.][^/]*\.txt$"  # in a split
PAIRS = r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$"
FILES = {"train": "train", "eval": "validation", "test": "test"}
NUM_RELEASED = {"train": 147_086, "eval": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


def encode_bytes(texts: Sequence[str], width: int, num_bytes: int | None = None) -> Any:
    """Tokens uint8 `[n, width]` of the first bytes of texts, and lengths `[n]`.

    UTF-8 has no byte 255, so tokens fit uint8.
    """
    first = min(width, num_bytes or width)
    rows = [np.frombuffer(x.encode(errors="replace")[:first], np.uint8) for x in texts]
    tokens, lengths = pad(rows, width, np.uint8)
    tokens += np.arange(width) < lengths[:, None]
    return tokens, lengths


def decode_bytes(tokens: np.ndarray) -> str:
    """The text of tokens `[n]`; what is left of a cut character shows as \\xe6."""
    values = (tokens[tokens > 0] - 1).astype(np.uint8)
    return values.tobytes().decode("utf-8", "backslashreplace")


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Texts as bytes, or in the sub-words of a pre-training run.

    `tokenizer` is None for bytes, or the run's: "byte" or the path of a tokenizer.json;
    then a text is `[CLS] tokens [SEP]`. `num_bytes` of it are kept; None = what fits.
    """

    vocab_size: ClassVar[int] = BYTES
    num_bytes: int | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer is not None:
            self.use_tokenizer(self.tokenizer)
            wrong = "num_bytes is for bytes; with a tokenizer leave it out"
            self.require(self.num_bytes is None, wrong)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        return np.uint8 if self.vocab_size <= BYTES else np.uint16

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.vocabulary is not None:
            return super().encode(texts)
        return encode_bytes(texts, self.max_length, self.num_bytes)

    def decode(self, tokens: np.ndarray) -> str:
        vocabulary = self.vocabulary
        return vocabulary.decode(tokens) if vocabulary else decode_bytes(tokens)


@dataclass(frozen=True, kw_only=True)
class Text(TextTask):
    """The benchmark by default: `aclImdb/`, its archive, or TFDS's `imdb_reviews`."""

    name: ClassVar[str] = "text"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Film reviews of IMDb: are they positive?"
    homepage: ClassVar[str] = "https://ai.stanford.edu/~amaas/data/sentiment/"
    citation: ClassVar[str] = "Maas et al., Learning Word Vectors, ACL 2011"
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[Sequence[str]] = ("negative", "positive")
    archive: ClassVar[Archive] = Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        folders=("aclImdb",),
        md5="7c2ac02c03563afcf9b574c7e56c153a",
        dataset="imdb_reviews/plain_text",
        content="train/pos",
    )
    files: ClassVar[str] = "t*/*"  # folders, whose times are those of new reviews
    reviews_per_class: ClassVar[int] = 12_500
    max_length: int = 4000
    seed: int = 0

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a review is left out, as TFDS does."""
        return super().encode([text.strip(string.whitespace) for text in texts])

    def make_splits(self, source: Path) -> dict[str, Split]:
        splits = {}
        for name in ("train", "test"):
            # In the order of classes and texts: TFDS's own order is another.
            labels, texts = zip(*sorted(self._read(source, name)), strict=True)
            decoded = [text.decode(errors="replace") for text in texts]
            splits[name] = self.encode_split(decoded, labels)
        return splits

    def _read(self, path: Path, split: str) -> list[tuple[int, bytes]]:
        """Labels and reviews of TFDS, or of the archive's {neg,pos}/*.txt."""
        if (rows := archives.read_tfds(path, split)) is not None:
            return [(int(row["label"]), row["text"]) for row in rows]
        with archives.open_members(path, REVIEW.format(split)) as members:
            found = [(int(x[1] == "pos"), file.read().strip()) for x, file in members]
        counts = np.bincount([label for label, _ in found], minlength=2)
        if {*counts} != {self.reviews_per_class}:
            has = f"{split} has {counts[0]:,} neg, {counts[1]:,} pos"
            wanted = f"not {self.reviews_per_class:,} of each: get it again"
            raise DataError(f"{path} is incomplete: {has}, {wanted}")
        return found


@dataclass(frozen=True, kw_only=True)
class Retrieval(TextTask):
    """The benchmark by default: `lra_release.gz`, `lra_release/` or its `tsv_data/`.

    It is too large to be downloaded unasked.
    """

    name: ClassVar[str] = "retrieval"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Two papers, byte by byte: does one cite the other?"
    homepage: ClassVar[str] = "https://github.com/google-research/long-range-arena"
    citation: ClassVar[str] = "Radev et al., The ACL Anthology Network Corpus, LRE 2013"
    num_classes: ClassVar[int] = 2
    num_inputs: ClassVar[int] = 2
    archive: ClassVar[Archive] = Archive(
        LRA_RELEASE,
        folders=tuple(f"{above}tsv_data" for above in UNPACKED),
        content="new_aan_pairs.train.tsv",
    )
    files: ClassVar[str] = "new_aan_pairs.*.tsv"
    max_length: int = 4000

    def make_splits(self, source: Path) -> dict[str, Split]:
        found = {}
        with archives.open_members(source, PAIRS) as members:
            for match, lines in members:
                found[FILES[match[1]]] = self._read(lines, source, match[1])
                if len(found) == len(FILES):
                    break  # gigabytes of other tasks may follow
        if missing := {*FILES.values()} - {*found}:
            raise DataError(f"{source} has no new_aan_pairs for {', '.join(missing)}")
        return found

    def _read(self, lines: Iterable[bytes], path: Path, file: str) -> Split:
        row_of: dict[bytes, int] = {}  # of each document, which is stored once
        labels, pairs, where = [], [], f"{path}: new_aan_pairs.{file}.tsv"
        bar = tqdm(lines, f"retrieval {file}", NUM_RELEASED[file], disable=None)
        for number, line in enumerate(bar, start=1):
            label, *others = line.rstrip(b"\r\n").split(b"\t")
            if len(others) != 4 or label not in LABELS or b"" in others[2:]:
                wanted = "label 0 or 1, two ids, two texts"
                raise DataError(f"{where}, line {number} is not five columns: {wanted}")
            pairs.append([row_of.setdefault(text, len(row_of)) for text in others[2:]])
            labels.append(LABELS[label])
        if len(labels) != NUM_RELEASED[file]:
            rest = f"the release has {NUM_RELEASED[file]:,}: results are not comparable"
            print(f"{where}: {len(labels):,} pairs, {rest}", file=sys.stderr)
        documents = [text.decode(errors="replace") for text in row_of]
        split = self.encode_split(documents, labels)
        return replace(split, pairs=np.array(pairs, np.int32))
