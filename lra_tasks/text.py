"""Text: is a film review positive? Byte by byte.

The 50,000 labelled IMDb reviews of Maas et al. 2011, as in Long Range Arena (Tay et
al. 2021, arXiv:2011.04006): the first 4,000 bytes, `<br />` and all.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks import archives, byte_tokens
from lra_tasks.archives import Archive
from lra_tasks.base import Task
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, hold_out, separate
from lra_tasks.storage import PathLike

POLARITIES = ("neg", "pos")  # the labels
RATINGS = {"neg": range(1, 5), "pos": range(7, 11)}  # out of 10
REVIEW = r"(?:^|/)(train|test)/(neg|pos)/([^/.][^/]*)$"
MAX_REVIEW_BYTES = 2**20


def read_reviews(path: Path, reviews_per_class: int) -> dict[str, list[bytes]]:
    """Reads `aclImdb/`, or the archive of it: {train,test}/{neg,pos}/ID_RATING.txt.

    Returns:
      "train" and "test": `reviews_per_class` negative ones and as many positive ones,
      each by ID.
    """
    found = {
        (split, polarity): {} for split in ("train", "test") for polarity in POLARITIES
    }
    with (
        archives.open_members(path, REVIEW) as members,
        Progress("reviews", len(found) * reviews_per_class) as bar,
    ):
        for match, file in members:
            split, polarity, name = match.groups()
            where = f"{path}: {match.string}"
            review = archives.read_whole(file, where, MAX_REVIEW_BYTES)
            if not review:
                raise DataError(f"{where} is empty")
            found[split, polarity][_parse_name(name, polarity, where)] = review
            bar.update(1)
    ordered = {"train": [], "test": []}
    for (split, polarity), reviews in found.items():
        if len(reviews) != reviews_per_class:
            raise DataError(
                f"{path} is incomplete: {split}/{polarity} has {len(reviews):,} "
                f"reviews, not {reviews_per_class:,}"
            )
        ordered[split] += [reviews[i] for i in sorted(reviews)]
    return ordered


def _parse_name(name: str, polarity: str, where: str) -> int:
    """The ID of "ID_RATING.txt", whose rating must fit its folder."""
    number, _, rating = name.removesuffix(".txt").partition("_")
    if not (name.endswith(".txt") and number.isdecimal() and rating.isdecimal()):
        raise DataError(f"{where} is not named ID_RATING.txt")
    if int(rating) not in RATINGS[polarity]:
        raise DataError(f"{where}: a rating of {rating} is not {polarity}")
    return int(number)


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """The benchmark by default.

    The archive, or the folder `aclImdb` it unpacks to, is looked for in data_dir, or in
    `source_dir` if given, and downloaded otherwise. `validation` is "held_out", a tenth
    of the training reviews drawn with `seed`, or "test": the practice of the published
    results, which choose the best checkpoint on the very examples they report.
    `tokenizer` is None for the benchmark's bytes, or what pre-training used, "byte" or
    the path of its tokenizer.json: then a review is `[CLS] tokens [SEP]`. `num_bytes`
    are kept of a review; None = as many as there is room for.
    """

    name: ClassVar[str] = "text"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = byte_tokens.VOCAB_SIZE
    num_classes: ClassVar[int] = 2
    archive: ClassVar[Archive] = Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        num_bytes=84_125_825,
        md5="7c2ac02c03563afcf9b574c7e56c153a",
    )
    reviews_per_class: ClassVar[int] = 12_500
    max_length: int = 4000
    num_bytes: int | None = None
    validation: str = "held_out"
    seed: int = 0
    source_dir: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenizer is not None:
            self._use_tokenizer(self.tokenizer, min_length=3)
            wrong = "num_bytes is for bytes; with a tokenizer leave it out"
            self.require(self.num_bytes is None, wrong)
        self.require(
            self.validation in ("held_out", "test"),
            f"validation must be held_out or test, not {self.validation!r}",
        )

    def load(self, split: str, data_dir: PathLike | None = None) -> Split:
        loaded = super().load(split, data_dir)
        if split == "validation" and self.validation == "test":
            print(
                "text: validation is the test split, as in the published results: the "
                "test accuracy of the best checkpoint is then too good",
                file=sys.stderr,
            )
        return loaded

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        path = archives.obtain([self.archive], ["aclImdb"], data_dir, self.source_dir)
        reviews = read_reviews(path, self.reviews_per_class)
        documents = (
            x.decode(errors="surrogateescape") for x in chain(*reviews.values())
        )
        inputs, lengths = self.encode([*documents])
        labels = np.repeat(np.arange(2, dtype=np.int32), self.reviews_per_class)
        train, test = (
            Split(inputs[rows], lengths[rows], labels)
            for rows in (slice(len(labels)), slice(len(labels), None))
        )
        if self.validation == "test":
            return {"train": train, "validation": test, "test": test}
        train, validation = hold_out(train, self.seed)
        splits = {"train": train, "validation": validation, "test": test}
        return separate(self.name, splits)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; bytes that are not UTF-8 are escaped as surrogates."""
        documents = [
            text.encode(errors="surrogateescape")[: self.num_bytes] for text in texts
        ]
        if self.vocabulary is None:
            dtype = byte_tokens.get_dtype(documents)
            return byte_tokens.encode(documents, self.max_length, dtype)
        return super().encode([x.decode(errors="replace") for x in documents])

    def decode(self, tokens: np.ndarray) -> str:
        return (self.vocabulary or byte_tokens).decode(tokens)
