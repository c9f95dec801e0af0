"""GLUE: sentences and pairs of them to classify (Wang et al. 2019, arXiv:1804.07461).

The official TSV folders are read, or TFDS's `glue`. The published test splits have no
labels: the official validation split is our test split, and a tenth of train is held
out for validation.
"""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lra_tasks import archives
from lra_tasks.base import Task
from lra_tasks.split import SPLITS, DataError, Split, remove_overlap, split_off

Table = tuple[list[tuple[str, ...]], list[int]]  # texts and labels


class Subset(NamedTuple):
    """Where a subset is; `files` ends with TFDS's name of the split."""

    folder: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    label_names: tuple[str, ...]
    files: Mapping[str, tuple[str, ...]] = {
        "train": ("train.tsv", "train"),
        "test": ("dev.tsv", "validation"),
    }


ANSWERS = ("entailment", "not_entailment")
RELATIONS = ("entailment", "neutral", "contradiction")
PAIR, NUMBERS = ("sentence1", "sentence2"), ("0", "1")
SUBSETS = {
    "sst2": Subset("SST-2", ("sentence",), "label", NUMBERS, ("negative", "positive")),
    "mrpc": Subset(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        NUMBERS,
        ("not_equivalent", "equivalent"),
        {
            "train": ("train.tsv", "msr_paraphrase_train.txt", "train"),
            "test": ("dev.tsv", "msr_paraphrase_test.txt", "validation"),
        },
    ),
    "qnli": Subset("QNLI", ("question", "sentence"), "label", ANSWERS, ANSWERS),
    "qqp": Subset(
        "QQP",
        ("question1", "question2"),
        "is_duplicate",
        NUMBERS,
        ("not_duplicate", "duplicate"),
    ),
    "mnli": Subset(
        "MNLI",
        PAIR,
        "gold_label",
        RELATIONS,
        RELATIONS,
        {
            "train": ("train.tsv", "train"),
            "test": ("dev_matched.tsv", "validation_matched"),
            "test_mismatched": ("dev_mismatched.tsv", "validation_mismatched"),
        },
    ),
}


def read_table(
    path: Path, columns: tuple[str, ...], label: str, labels: tuple[str, ...]
) -> Table:
    """Reads texts and labels of a CSV file, or of a TSV file without quoting.

    Lines that lack one of the columns, of which QQP has some, are left out; a line on
    stderr says how many.

    Raises:
      DataError: no such column, other labels, or no text.
    """
    try:
        text = io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=None)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None
    if path.suffix == ".csv":
        lines = csv.DictReader(text)
    else:
        lines = csv.DictReader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    if missing := {*columns, label} - {*(lines.fieldnames or ())}:
        raise DataError(f"{path}, line 1: no column {', '.join(sorted(missing))}")
    rows = [[line[column] for column in (*columns, label)] for line in lines]
    whole = [[text.strip() for text in row] for row in rows if None not in row]
    left_out = len(rows) - len(whole)
    if left_out > len(whole) // 10 or not whole:
        raise DataError(f"{path}: {left_out:,} of {len(rows):,} lines lack a column")
    if left_out:
        print(f"{path}: {left_out:,} lines lack a column: left out", file=sys.stderr)
    found = sorted({row[-1] for row in whole})
    if {*found} - {*labels}:
        message = f"{path}: its labels are {','.join(found[:20])}"
        raise DataError(f"{message}, not {','.join(labels)}")
    return [tuple(row[:-1]) for row in whole], [labels.index(row[-1]) for row in whole]


@dataclass(frozen=True, kw_only=True)
class Glue(Task):
    """One of SUBSETS; MNLI has a second test split, "test_mismatched".

    `source_dir` is the folder that holds SST-2/, MRPC/, …, or one of these; without
    them TFDS's `glue/SUBSET` is read. `tokenizer` is "byte" or the path of a
    pre-training run's tokenizer.json; an example is `[CLS] a [SEP]` or `[CLS] a [SEP] b
    [SEP]`.
    """

    name: ClassVar[str] = "glue"
    data_version: ClassVar[str] = "1.1.0"
    description: ClassVar[str] = "Sentences, or pairs of them, to classify."
    homepage: ClassVar[str] = "https://gluebenchmark.com"
    citation: ClassVar[str] = "Wang et al., GLUE, ICLR 2019"
    subset: str = "sst2"
    max_length: int = 128
    seed: int = 0
    tokenizer: str = "byte"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = f"subset must be one of {', '.join(SUBSETS)}, not {self.subset!r}"
        self.require(self.subset in SUBSETS, known)
        subset = SUBSETS[self.subset]
        self._set(num_classes=len(subset.labels), num_texts=len(subset.texts))
        self._use_tokenizer(self.tokenizer, min_length=8)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*SPLITS, *SUBSETS[self.subset].files)))

    @property
    def label_names(self) -> Sequence[str]:
        return SUBSETS[self.subset].label_names

    def source_files(self) -> list[Path]:
        place, files = Path(str(self.source_dir)), SUBSETS[self.subset].files
        found = [self._find(place, split) for split in files]
        return [path for path in found if path]

    def _find(self, place: Path, split: str) -> Path | None:
        subset = SUBSETS[self.subset]
        names = subset.files[split][:-1]
        paths = [place / x / name for name in names for x in (subset.folder, "")]
        return next(filter(Path.is_file, paths), None)

    def make_splits(self, data_dir: Path) -> Mapping[str, Split]:
        splits = {}
        for split in SUBSETS[self.subset].files:
            texts, labels = self._read(self.place(data_dir), split)
            inputs, lengths = self.encode(texts)
            splits[split] = Split(inputs, lengths, np.array(labels, np.int32))
        splits["train"], splits["validation"] = split_off(splits["train"], self.seed)
        return remove_overlap(self.name, splits)

    def _read(self, place: Path, split: str) -> Table:
        subset = SUBSETS[self.subset]
        if path := self._find(place, split):
            return read_table(path, subset.texts, subset.label, subset.labels)
        *files, name = subset.files[split]
        rows = archives.read_tfds(f"glue/{self.subset}", name, self.source_dir)
        if rows is None:
            raise DataError(
                f"{place} has no {subset.folder}/{' or '.join(files)}: get them from "
                "https://gluebenchmark.com/tasks and name their folder as source_dir"
            )
        columns = PAIR if self.subset == "mrpc" else subset.texts
        if self.subset == "mnli":
            columns = ("premise", "hypothesis")
        rows = sorted(rows, key=lambda row: row["idx"])  # the order of the lines
        texts = [tuple(row[x].decode().strip() for x in columns) for row in rows]
        return texts, [int(row["label"]) for row in rows]
