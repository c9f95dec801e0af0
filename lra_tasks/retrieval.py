"""Retrieval: does one paper cite the other? Byte by byte, two documents an example.

The ACL Anthology Network (Radev et al. 2013) in the pairs of Long Range Arena (Tay et
al. 2021, arXiv:2011.04006): the first 4,000 bytes of both papers.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from tqdm import tqdm

from lra_tasks import archives
from lra_tasks.archives import LRA_RELEASE, UNPACKED, Archive
from lra_tasks.split import DataError, Split
from lra_tasks.text import TextTask

PAIRS = r"(?:^|/)new_aan_pairs\.(train|eval|test)\.tsv$"
FILES = {"train": "train", "eval": "validation", "test": "test"}
NUM_RELEASED = {"train": 147_086, "eval": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}


@dataclass(frozen=True, kw_only=True)
class Retrieval(TextTask):
    """The benchmark by default.

    `lra_release.gz`, or `lra_release/` it unpacks to, or its folder `tsv_data`, is
    looked for in data_dir, or in `source_dir` if given. It is too large to be
    downloaded unasked.
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
        files="new_aan_pairs.*.tsv",
    )
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
            rest = f"the release has {NUM_RELEASED[file]:,}: results are of their own"
            print(f"{where}: {len(labels):,} pairs, {rest}", file=sys.stderr)
        inputs, lengths = self.encode(
            [text.decode(errors="replace") for text in row_of]
        )
        return Split(inputs, lengths, *(np.array(x, np.int32) for x in (labels, pairs)))
