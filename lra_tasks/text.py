"""Text and Retrieval: is a film review positive? Does one paper cite the other?

Byte by byte, as in Long Range Arena (Tay et al. 2021, arXiv:2011.04006): the first
4,000 bytes of the 50,000 labelled IMDb reviews of Maas et al. 2011, `<br />` and all,
and of both papers of pairs of the ACL Anthology Network (Radev et al. 2013). A byte's
token is its value plus one; 0 is padding.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from tqdm import tqdm

from lra_tasks import archives
from lra_tasks.archives import LRA_RELEASE, UNPACKED, Archive
from lra_tasks.errors import DataError
from lra_tasks.split import Split, pad, report_other_size
from lra_tasks.task import Task

NUM_BYTE_TOKENS = 257  # 256 bytes behind the padding
# The reviews of a split.
REVIEW = r"(?:^|/){}/(neg|pos)/[^/.][^/]*\.txt$"
# The release's files of pairs, and the splits that they are.
PAIRS = r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$"
SPLIT_OF_FILE = {"train": "train", "eval": "validation", "test": "test"}
NUM_RELEASED = {"train": 147_086, "eval": 18_090, "test": 17_437}
# The labels of pairs, as the release writes them.
LABEL_OF_FIELD = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


def encode_bytes(
    texts: Sequence[str], width: int, num_bytes: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Makes tokens of the first bytes of texts.

    Args:
      texts: n texts.
      width: the number of columns.
      num_bytes: how many bytes of a text are kept, if they fit; None = what fits.

    Returns:
      Tokens uint8 `[n, width]`, in UTF-8, which has no byte 255; and lengths `[n]`.
    """
    num_kept = width if num_bytes is None else min(width, num_bytes)
    contents = [text.encode(errors="replace")[:num_kept] for text in texts]
    rows = [np.frombuffer(content, np.uint8) for content in contents]
    tokens, lengths = pad(rows, width, np.uint8)
    is_text = np.arange(width) < lengths[:, None]
    return tokens + is_text, lengths


def decode_bytes(tokens: np.ndarray) -> str:
    """Returns the text of tokens `[n]`; a cut character shows as \\xe6."""
    values = (tokens[tokens > 0] - 1).astype(np.uint8)
    return values.tobytes().decode("utf-8", "backslashreplace")


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """Texts as bytes, or in the sub-words of a pre-training run.

    `tokenizer` is None for bytes, or the run's: "byte" or the path of a tokenizer.json;
    then a text is `[CLS] tokens [SEP]`. `num_bytes` of it are kept; None = what fits.
    """

    vocab_size: ClassVar[int] = NUM_BYTE_TOKENS
    num_bytes: int | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer is not None:
            self.use_tokenizer(self.tokenizer)
            self.require(
                self.num_bytes is None,
                "num_bytes is for bytes; with a tokenizer leave it out",
            )
        self.require(
            self.num_bytes is None or self.num_bytes >= 1,
            f"num_bytes must be at least 1, not {self.num_bytes}: leave it out for as "
            "many as fit",
        )

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        if self.vocabulary is None and self.vocab_size == NUM_BYTE_TOKENS:
            return np.uint8  # The token 256 is the byte 255, which UTF-8 does not have.
        return super().dtype

    @property
    def token_ids(self) -> str:
        if self.tokenizer is None:
            return "0 padding, then the 256 bytes: 1 + byte"
        return super().token_ids

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.vocabulary is not None:
            return super().encode(texts)
        return encode_bytes(texts, self.max_length, self.num_bytes)

    def with_more_room(self) -> Self:
        task = super().with_more_room()
        if self.num_bytes is not None:
            object.__setattr__(task, "num_bytes", self.num_bytes + 1)
        return task

    def decode(self, tokens: np.ndarray) -> str:
        if self.vocabulary is not None:
            return self.vocabulary.decode(tokens)
        return decode_bytes(tokens)


@dataclass(frozen=True, kw_only=True)
class Text(TextTask):
    """By default the benchmark's: `aclImdb/`, its archive, or TFDS's `imdb_reviews`."""

    name: ClassVar[str] = "text"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Film reviews of IMDb: are they positive?"
    homepage: ClassVar[str] = "https://ai.stanford.edu/~amaas/data/sentiment/"
    citation: ClassVar[str] = "Maas et al., Learning Word Vectors, ACL 2011"
    num_classes: ClassVar[int] = 2
    label_names: ClassVar[Sequence[str]] = ("negative", "positive")
    archive: ClassVar[Archive] = Archive(
        url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        folders=("aclImdb",),
        md5="7c2ac02c03563afcf9b574c7e56c153a",
        dataset="imdb_reviews/plain_text",
    )
    files: ClassVar[str] = "t*/*"  # These are folders; a new review changes their time.
    reviews_per_class: ClassVar[int] = 12_500
    max_length: int = 4000
    seed: int = 0

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a review is left out, as TFDS does."""
        return super().encode([text.strip(string.whitespace) for text in texts])

    def make_splits(self, source: Path) -> dict[str, Split]:
        splits = {}
        for name in ("train", "test"):
            # TFDS has a different order than the archive, so they are sorted.
            reviews = sorted(self._read(source, name))
            texts = [review.decode(errors="replace") for _, review in reviews]
            splits[name] = self.encode_split(texts, [label for label, _ in reviews])
        return splits

    def _read(self, source: Path, split: str) -> list[tuple[int, bytes]]:
        """Labels and reviews of TFDS, or of the archive's {neg,pos}/*.txt."""
        rows = archives.read_tfds(source, split)
        if rows is not None:
            return [(int(row["label"]), row["text"]) for row in rows]
        with archives.open_members(source, REVIEW.format(split)) as members:
            reviews = [
                (int(match[1] == "pos"), file.read().strip()) for match, file in members
            ]

        num_positive = sum(label for label, _ in reviews)
        num_negative = len(reviews) - num_positive
        if {num_negative, num_positive} != {self.reviews_per_class}:
            raise DataError(
                f"{source} is incomplete: {split} has {num_negative:,} neg, "
                f"{num_positive:,} pos, not {self.reviews_per_class:,} of each: get it "
                "again"
            )
        return reviews


@dataclass(frozen=True, kw_only=True)
class Retrieval(TextTask):
    """By default the benchmark's: `lra_release.gz`, `lra_release/` or its `tsv_data/`.

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
        url=LRA_RELEASE,
        folders=tuple(f"{above}tsv_data" for above in UNPACKED),
    )
    files: ClassVar[str] = "new_aan_pairs.*.tsv"
    max_length: int = 4000

    def make_splits(self, source: Path) -> dict[str, Split]:
        splits = {}
        with archives.open_members(source, PAIRS) as members:
            for match, lines in members:
                file_name = match[1]
                splits[SPLIT_OF_FILE[file_name]] = self._read(lines, source, file_name)
                if len(splits) == len(SPLIT_OF_FILE):
                    break  # Gigabytes of other tasks may follow.
        missing = [name for name in SPLIT_OF_FILE.values() if name not in splits]
        if missing:
            raise DataError(f"{source} has no new_aan_pairs for {', '.join(missing)}")
        return splits

    def _read(self, lines: Iterable[bytes], source: Path, file_name: str) -> Split:
        """The pairs of a file: label, two ids and two texts in each line."""
        row_of: dict[bytes, int] = {}  # Each document is stored once.
        labels = []
        pairs = []
        path = f"{source}: new_aan_pairs.{file_name}.tsv"
        num_released = NUM_RELEASED[file_name]
        bar = tqdm(lines, f"retrieval {file_name}", num_released, disable=None)
        for number, line in enumerate(bar, start=1):
            fields = line.rstrip(b"\r\n").split(b"\t")
            if len(fields) != 5 or fields[0] not in LABEL_OF_FIELD or b"" in fields[3:]:
                raise DataError(
                    f"{path}, line {number} is not five columns: label 0 or 1, two "
                    "ids, two texts"
                )
            labels.append(LABEL_OF_FIELD[fields[0]])
            pairs.append([row_of.setdefault(text, len(row_of)) for text in fields[3:]])

        report_other_size(
            path, count=len(labels), num_released=num_released, noun="pairs"
        )
        documents = [text.decode(errors="replace") for text in row_of]
        inputs, lengths = self.encode(documents)
        return Split(
            inputs, lengths, np.array(labels, np.int32), np.array(pairs, np.int32)
        )
