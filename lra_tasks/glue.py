"""GLUE (Wang et al. 2019, arXiv:1804.07461): sentences, or pairs of them, to classify.

GLUE is read from the official TSV folders, or from TFDS's `glue`. The published test
splits have no labels: ours is their validation, and our validation a tenth of train.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra_tasks import archives
from lra_tasks.errors import DataError
from lra_tasks.split import SPLITS, Split
from lra_tasks.subwords import to_tuples
from lra_tasks.tables import Table, read_table
from lra_tasks.task import Task


class Source(NamedTuple):
    """Where one split comes from."""

    files: tuple[str, ...]  # the first that is there is read
    tfds_split: str


class Subset(NamedTuple):
    """Where a subset is, and what its files have."""

    folder: str
    texts: tuple[str, ...]  # the columns
    label: str  # the column
    classes: Mapping[str, str]  # labels in the files, and what they mean
    sources: Mapping[str, Source] = {
        "train": Source(("train.tsv",), "train"),
        "test": Source(("dev.tsv",), "validation"),
    }
    tfds_texts: tuple[str, ...] = ()  # the columns, where TFDS has other ones


SENTENCE_PAIR = ("sentence1", "sentence2")
SUBSETS = {
    "sst2": Subset(
        folder="SST-2",
        texts=("sentence",),
        label="label",
        classes={"0": "negative", "1": "positive"},
    ),
    "mrpc": Subset(
        folder="MRPC",
        texts=("#1 String", "#2 String"),
        label="Quality",
        classes={"0": "not_equivalent", "1": "equivalent"},
        sources={
            "train": Source(("train.tsv", "msr_paraphrase_train.txt"), "train"),
            "test": Source(("dev.tsv", "msr_paraphrase_test.txt"), "validation"),
        },
        tfds_texts=SENTENCE_PAIR,
    ),
    "qnli": Subset(
        folder="QNLI",
        texts=("question", "sentence"),
        label="label",
        classes={"entailment": "entailment", "not_entailment": "not_entailment"},
    ),
    "qqp": Subset(
        folder="QQP",
        texts=("question1", "question2"),
        label="is_duplicate",
        classes={"0": "not_duplicate", "1": "duplicate"},
    ),
    "mnli": Subset(
        folder="MNLI",
        texts=SENTENCE_PAIR,
        label="gold_label",
        classes={
            "entailment": "entailment",
            "neutral": "neutral",
            "contradiction": "contradiction",
        },
        sources={
            "train": Source(("train.tsv",), "train"),
            "test": Source(("dev_matched.tsv",), "validation_matched"),
            "test_mismatched": Source(("dev_mismatched.tsv",), "validation_mismatched"),
        },
        tfds_texts=("premise", "hypothesis"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Glue(Task):
    """One of SUBSETS; MNLI has a second test split, "test_mismatched".

    `source_dir` is the folder that holds SST-2/, MRPC/, …; without them TFDS's
    `glue/SUBSET` is read. `tokenizer` is "byte" or the path of a
    pre-training run's tokenizer.json; an example is `[CLS] a [SEP]`, or with b [SEP].
    """

    name: ClassVar[str] = "glue"
    data_version: ClassVar[str] = "1.3.0"
    description: ClassVar[str] = "Sentences, or pairs of them, to classify."
    homepage: ClassVar[str] = "https://gluebenchmark.com"
    citation: ClassVar[str] = "Wang et al., GLUE, ICLR 2019"
    subset: str = "sst2"
    max_length: int = 128
    seed: int = 0
    tokenizer: str = "byte"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(
            self.subset in SUBSETS,
            f"subset must be one of {', '.join(SUBSETS)}, not {self.subset!r}",
        )
        self.use_tokenizer(self.tokenizer)

    @property
    def _subset(self) -> Subset:
        return SUBSETS[self.subset]

    @property
    def num_classes(self) -> int:
        return len(self._subset.classes)

    @property
    def label_names(self) -> list[str]:
        return list(self._subset.classes.values())

    @property
    def num_texts(self) -> int:
        return len(self._subset.texts)

    @property
    def splits(self) -> tuple[str, ...]:
        other_splits = [split for split in self._subset.sources if split not in SPLITS]
        return (*SPLITS, *other_splits)

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a text is left out."""
        stripped = [
            tuple(text.strip() for text in example) for example in to_tuples(texts)
        ]
        return super().encode(stripped)

    def source_files(self) -> list[Path]:
        place = self.find_source(Path())
        files = [self._find_file(place, split) for split in self._subset.sources]
        return [file for file in files if file]

    def _find_file(self, place: Path, split: str) -> Path | None:
        subset = self._subset
        return archives.find(subset.sources[split].files, place / subset.folder)

    def make_splits(self, source: Path) -> dict[str, Split]:
        splits = {}
        for split in self._subset.sources:
            texts, labels = self._read(source, split)
            splits[split] = self.encode_split(texts, labels)
        return splits

    def _read(self, place: Path, split: str) -> Table:
        subset = self._subset
        file = self._find_file(place, split)
        if file:
            return read_table(
                file,
                texts=subset.texts,
                label=subset.label,
                classes=list(subset.classes),
            )
        table = self._read_tfds(split)
        if table is None:
            raise DataError(
                f"{place} has no {subset.folder}/{subset.sources[split].files[0]}: get "
                "it from https://gluebenchmark.com/tasks and name the folder of "
                f"{subset.folder}/ as source_dir"
            )
        return table

    def _read_tfds(self, split: str) -> Table | None:
        folder = archives.find_tfds(f"glue/{self.subset}", self.source_dir)
        if folder is None:
            return None
        rows = archives.read_tfds(folder, self._subset.sources[split].tfds_split)
        if rows is None:
            return None
        rows.sort(key=lambda row: row["idx"])  # the order of the lines
        columns = self._subset.tfds_texts or self._subset.texts
        texts = [tuple(row[column].decode() for column in columns) for row in rows]
        return texts, [int(row["label"]) for row in rows]
