"""Retrieval: does one paper cite the other? Byte by byte, two documents an example.

The ACL Anthology Network (Radev et al. 2013) in the pairs of Long Range Arena (Tay et
al. 2021, arXiv:2011.04006): the first 4,000 bytes of both papers.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

import numpy as np

from lra_tasks import archives, byte_tokens
from lra_tasks.archives import Archive
from lra_tasks.base import Task
from lra_tasks.progress import Progress
from lra_tasks.split import DataError, Split, separate

PAIRS = r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$"
FILE_OF = {"train": "train", "validation": "eval", "test": "test"}
NUM_RELEASED = {"train": 147_086, "eval": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
COLUMNS = 5  # label, two ids, two texts
MAX_LINE_BYTES = 2**26


class Pairs(NamedTuple):
    documents: list[bytes]  # each once, cut to length
    labels: list[int]
    rows: list[tuple[int, int]]  # the two documents of each pair


def read_pairs(path: Path, num_bytes: int) -> dict[str, Pairs]:
    """Reads new_aan_pairs.{train,eval,test}.tsv from a folder or from the release.

    Of each document the first num_bytes.
    """
    found: dict[str, Pairs] = {}
    with archives.open_members(path, PAIRS) as members:
        for match, file in members:
            if match[1] not in found:
                where = f"{path}: {match.string}"
                found[match[1]] = _read_file(file, where, match[1], num_bytes)
            if len(found) == len(NUM_RELEASED):
                break  # gigabytes of other tasks may follow
    for name, released in NUM_RELEASED.items():
        if name not in found:
            raise DataError(f"{path} has no new_aan_pairs.{name}.tsv")
        if (num_pairs := len(found[name].labels)) != released:
            found_here = f"{num_pairs:,} pairs in new_aan_pairs.{name}.tsv"
            rest = f"the release has {released:,}: results are of their own"
            print(f"retrieval: {found_here}, {rest}", file=sys.stderr)
    return found


def _read_file(file: IO[bytes], where: str, name: str, num_bytes: int) -> Pairs:
    rows_of: dict[bytes, int] = {}
    labels, rows = [], []
    with Progress(f"retrieval {name}", NUM_RELEASED[name]) as bar:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                label, *texts = _parse(line)
            except DataError as error:
                raise DataError(f"{where}, line {len(rows) + 1}: {error}") from None
            cut = (text[:num_bytes] for text in texts)
            first, second = (rows_of.setdefault(text, len(rows_of)) for text in cut)
            labels.append(label)
            rows.append((first, second))
            bar.update(1)
    if not rows:
        raise DataError(f"{where} has no pairs")
    return Pairs(list(rows_of), labels, rows)


def _parse(line: bytes) -> tuple[int, bytes, bytes]:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != COLUMNS:
        raise DataError(f"{len(columns)} columns, not {COLUMNS}")
    label, _, _, first, second = columns
    if label not in LABELS:
        raise DataError(f"the label {label[:20]!r} is not 0 or 1")
    if not (first and second):
        raise DataError("an empty document")
    return LABELS[label], first, second


@dataclass(frozen=True, kw_only=True)
class Retrieval(Task):
    """The benchmark by default.

    `lra_release.gz`, or `lra_release/` it unpacks to, or its folder `tsv_data`, is
    looked for in data_dir, or in `source_dir` if given. It is too large to be
    downloaded unasked. `num_bytes` are kept of a document; None = as many as there is
    room for.
    """

    name: ClassVar[str] = "retrieval"
    version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = byte_tokens.VOCAB_SIZE
    num_classes: ClassVar[int] = 2
    num_inputs: ClassVar[int] = 2
    archive: ClassVar[Archive] = archives.LRA_RELEASE
    max_length: int = 4000
    num_bytes: int | None = None
    source_dir: str | None = None

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        above = ("lra_release/", "lra_release/lra_release/", "")
        folders = [f"{place}tsv_data" for place in above]
        path = archives.obtain([self.archive], folders, data_dir, self.source_dir)
        found = read_pairs(path, min(self.max_length, self.num_bytes or sys.maxsize))
        dtype = byte_tokens.get_dtype(
            document for pairs in found.values() for document in pairs.documents
        )
        splits = {}
        for name, file in FILE_OF.items():
            pairs = found.pop(file)
            splits[name] = Split(
                *byte_tokens.encode(pairs.documents, self.max_length, dtype),
                np.array(pairs.labels, np.int32),
                np.array(pairs.rows, np.int32),
            )
        return separate(self.name, splits)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        documents = [text.encode()[: self.num_bytes] for text in texts]
        return byte_tokens.encode(documents, self.max_length, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return byte_tokens.decode(tokens)
