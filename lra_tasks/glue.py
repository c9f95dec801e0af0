"""GLUE: sentences and pairs of them to classify (Wang et al. 2019, arXiv:1804.07461).

The official TSV folders are read: a header names the columns, a tab divides them, and
quotation marks mean nothing. The published test splits have no labels: the official dev
split is our test split, and a tenth of train is held out for validation.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from lra_tasks import archives
from lra_tasks.base import Task
from lra_tasks.split import DataError, Split, hold_out, separate

MAX_FILE_BYTES = 2**30


class Subset(NamedTuple):
    """Where a subset's files are, and which columns hold texts and label."""

    folder: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    train: tuple[str, ...] = ("train.tsv",)  # the first that is there
    dev: tuple[str, ...] = ("dev.tsv",)


SUBSETS = {
    "sst2": Subset("SST-2", ("sentence",), "label", ("0", "1")),
    "mrpc": Subset(
        "MRPC",
        ("#1 String", "#2 String"),
        "Quality",
        ("0", "1"),
        ("train.tsv", "msr_paraphrase_train.txt"),
        ("dev.tsv", "msr_paraphrase_test.txt"),
    ),
    "qnli": Subset(
        "QNLI", ("question", "sentence"), "label", ("entailment", "not_entailment")
    ),
    "qqp": Subset("QQP", ("question1", "question2"), "is_duplicate", ("0", "1")),
    "mnli": Subset(
        "MNLI",
        ("sentence1", "sentence2"),
        "gold_label",
        ("entailment", "neutral", "contradiction"),
        dev=("dev_matched.tsv",),
    ),
}
SUBSETS["mnli_mm"] = SUBSETS["mnli"]._replace(dev=("dev_mismatched.tsv",))


def read_tsv(path: Path, subset: Subset) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """The texts and labels int32 `[n]` of one file.

    Lines of another number of columns than the header's, of which QQP has some, and
    those of no gold label ("-") are left out, and a line on stderr says how many.
    """
    with archives.open_regular(path) as file:
        content = archives.read_whole(file, str(path), MAX_FILE_BYTES)
    header, *lines = archives.as_text(content, path).rstrip("\r\n").split("\n")
    names = header.rstrip("\r").split("\t")
    if missing := [name for name in (*subset.texts, subset.label) if name not in names]:
        raise DataError(f"{path}, line 1: no column {', '.join(missing)}")
    *places, place = (names.index(name) for name in (*subset.texts, subset.label))
    texts, labels, left_out = [], [], 0
    for number, line in enumerate(lines, start=2):
        columns = line.rstrip("\r").split("\t")
        if len(columns) != len(names) or columns[place] == "-":
            left_out += 1
            continue
        if columns[place] not in subset.labels:
            known, found = ", ".join(subset.labels), columns[place][:20]
            raise DataError(f"{path}, line {number}: the label {found!r} is no {known}")
        texts.append(tuple(columns[place].strip() for place in places))
        labels.append(subset.labels.index(columns[place]))
    if left_out > len(texts) // 10:
        raise DataError(f"{path}: {left_out:,} lines are not of {len(names)} columns")
    if not texts:
        raise DataError(f"{path} has no examples")
    if left_out:
        print(f"{path}: {left_out:,} malformed lines left out", file=sys.stderr)
    return texts, np.array(labels, np.int32)


@dataclass(frozen=True, kw_only=True)
class Glue(Task):
    """One of SUBSETS; "mnli_mm" is MNLI with the mismatched dev split as its test.

    `source_dir` is the folder that holds SST-2/, MRPC/, …, or one of these. `tokenizer`
    is "byte" or the path of a pre-training run's tokenizer.json. An example is
    `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`.
    """

    name: ClassVar[str] = "glue"
    version: ClassVar[str] = "1.0.0"
    subset: str = "sst2"
    max_length: int = 128
    seed: int = 0
    tokenizer: str = "byte"
    source_dir: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = f"subset must be one of {', '.join(SUBSETS)}, not {self.subset!r}"
        self.require(self.subset in SUBSETS, known)
        subset = SUBSETS[self.subset]
        self._set(num_classes=len(subset.labels), num_texts=len(subset.texts))
        self._use_tokenizer(self.tokenizer, min_length=8)

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        place, subset = Path(self.source_dir or data_dir), SUBSETS[self.subset]
        train = self._read(place, subset, subset.train)
        test = self._read(place, subset, subset.dev)
        train, validation = hold_out(train, self.seed)
        splits = {"train": train, "validation": validation, "test": test}
        return separate(self.name, splits)

    def _read(self, place: Path, subset: Subset, names: tuple[str, ...]) -> Split:
        for name in names:
            for path in (place / subset.folder / name, place / name):
                if path.exists():
                    texts, labels = read_tsv(path, subset)
                    return Split(*self.encode(texts), labels)
        raise DataError(
            f"{place} has no {subset.folder}/{' or '.join(names)}: get GLUE's data "
            "from https://gluebenchmark.com/tasks and name their folder as source_dir"
        )
