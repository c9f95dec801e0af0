"""Retrieval: does one paper cite the other? Byte by byte, two documents an example.

The ACL Anthology Network (Radev et al. 2013) in the pairs of Long Range Arena (Tay et
al. 2021, arXiv:2011.04006): the first 4,000 bytes of both papers.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from lra_tasks import archives
from lra_tasks.archives import Archive
from lra_tasks.base import Task
from lra_tasks.split import SPLITS, DataError, Split, remove_overlap
from lra_tasks.text import BYTES, decode_bytes, encode_bytes

PAIRS = r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$"
FILES = ("train", "eval", "test")  # of SPLITS
NUM_RELEASED = {"train": 147_086, "eval": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
COLUMNS = 5  # label, two ids, two texts


def read_pairs(path: Path, max_length: int, num_bytes: int) -> dict[str, Split]:
    """Reads new_aan_pairs.{train,eval,test}.tsv from a folder or from the release.

    Takes the first `num_bytes` of each document.
    """
    found: dict[str, Split] = {}
    with archives.open_members(path, PAIRS) as members:
        for match, lines in members:
            name, where = match[1], f"{path}: {match.string}"
            found[name] = _read_file(lines, where, name, max_length, num_bytes)
            if len(found) == len(FILES):
                break  # gigabytes of other tasks may follow
    for name in FILES:
        if name not in found:
            raise DataError(f"{path} has no new_aan_pairs.{name}.tsv")
        if (number := found[name].num_examples) != NUM_RELEASED[name]:
            found_here = f"{number:,} pairs in new_aan_pairs.{name}.tsv"
            rest = f"the release has {NUM_RELEASED[name]:,}: results are of their own"
            print(f"retrieval: {found_here}, {rest}", file=sys.stderr)
    return found


def _read_file(
    lines: Iterable[bytes], where: str, name: str, max_length: int, num_bytes: int
) -> Split:
    row_of: dict[bytes, int] = {}  # of each document, which is stored once
    labels, pairs = [], []
    bar = tqdm(lines, f"retrieval {name}", NUM_RELEASED[name], disable=None)
    for number, line in enumerate(bar, start=1):
        columns = line.rstrip(b"\r\n").split(b"\t")
        if len(columns) != COLUMNS or columns[0] not in LABELS or b"" in columns[3:]:
            wanted = "label 0 or 1, two ids, two texts"
            raise DataError(f"{where}, line {number} is not five columns: {wanted}")
        texts = (text[:num_bytes] for text in columns[3:])
        pairs.append([row_of.setdefault(text, len(row_of)) for text in texts])
        labels.append(LABELS[columns[0]])
    if not labels:
        raise DataError(f"{where} has no pairs")
    inputs, lengths = encode_bytes([*row_of], max_length)
    return Split(inputs, lengths, np.array(labels, np.int32), np.array(pairs, np.int32))


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """The benchmark by default.

    `lra_release.gz`, or `lra_release/` it unpacks to, or its folder `tsv_data`, is
    looked for in data_dir, or in `source_dir` if given. It is too large to be
    downloaded unasked. `num_bytes` are kept of a document; None = as many as there is
    room for.
    """

    name: ClassVar[str] = "retrieval"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Two papers, byte by byte: does one cite the other?"
    homepage: ClassVar[str] = "https://github.com/google-research/long-range-arena"
    citation: ClassVar[str] = "Radev et al., The ACL Anthology Network Corpus, LRE 2013"
    vocab_size: ClassVar[int] = BYTES
    num_classes: ClassVar[int] = 2
    num_inputs: ClassVar[int] = 2
    dtype: ClassVar[type[np.unsignedinteger]] = np.uint8
    archive: ClassVar[Archive] = archives.LRA_RELEASE
    max_length: int = 4000
    num_bytes: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.num_bytes is None or self.num_bytes >= 1
        self.require(fits, f"num_bytes must be at least 1, not {self.num_bytes}")

    def source_files(self) -> list[Path]:
        path = self._find(Path(str(self.source_dir)))
        return [path, *path.glob("new_aan_pairs.*.tsv")]

    def _find(self, place: Path) -> Path:
        above = ("lra_release/", "lra_release/lra_release/", "")
        if folder := archives.find([f"{x}tsv_data" for x in above], place):
            return folder
        return archives.obtain(self.archive, "tsv_data", place, by_hand=True)

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        num_bytes = min(self.max_length, self.num_bytes or self.max_length)
        path = self._find(self.place(data_dir))
        found = read_pairs(path, self.max_length, num_bytes)
        splits = {name: found[file] for name, file in zip(SPLITS, FILES, strict=True)}
        return remove_overlap(self.name, splits)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, ...]:
        documents = [text.encode(errors="replace")[: self.num_bytes] for text in texts]
        return encode_bytes(documents, self.max_length)

    def decode(self, tokens: np.ndarray) -> str:
        return decode_bytes(tokens)
