"""GLUE (Wang et al. 2019, arXiv:1804.07461), and tables of texts of one's own.

GLUE is read from the official TSV folders, or from TFDS's `glue`. The published test
splits have no labels: ours is their validation, and our validation a tenth of train.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra_tasks import archives
from lra_tasks.base import Task
from lra_tasks.errors import DataError
from lra_tasks.split import SPLITS, Split
from lra_tasks.tables import Table, read_table
from lra_tasks.text import TextTask


class Subset(NamedTuple):
    """Where a subset is, and what its files have."""

    folder: str
    texts: tuple[str, ...]  # the columns
    label: str
    classes: Mapping[str, str]  # in the files, and their names
    files: Mapping[str, tuple[str, ...]] = {  # the last is TFDS's name of the split
        "train": ("train.tsv", "msr_paraphrase_train.txt", "train"),
        "test": ("dev.tsv", "msr_paraphrase_test.txt", "validation"),
    }


MNLI_FILES = {
    "train": ("train.tsv", "train"),
    "test": ("dev_matched.tsv", "validation_matched"),
    "test_mismatched": ("dev_mismatched.tsv", "validation_mismatched"),
}
ANSWERS = {x: x for x in ("entailment", "not_entailment")}
RELATIONS = {x: x for x in ("entailment", "neutral", "contradiction")}
SENTIMENTS = {"0": "negative", "1": "positive"}
SAME = {"0": "not_equivalent", "1": "equivalent"}
DUPLICATE = {"0": "not_duplicate", "1": "duplicate"}
PAIR, QUESTIONS = ("sentence1", "sentence2"), ("question1", "question2")
SUBSETS = {
    "sst2": Subset("SST-2", ("sentence",), "label", SENTIMENTS),
    "mrpc": Subset("MRPC", ("#1 String", "#2 String"), "Quality", SAME),
    "qnli": Subset("QNLI", ("question", "sentence"), "label", ANSWERS),
    "qqp": Subset("QQP", QUESTIONS, "is_duplicate", DUPLICATE),
    "mnli": Subset("MNLI", PAIR, "gold_label", RELATIONS, MNLI_FILES),
}
OTHER_NAMES = {"val": "validation", "valid": "validation", "dev": "validation"}
TFDS_TEXTS = {"mrpc": PAIR, "mnli": ("premise", "hypothesis")}  # where they differ


@dataclass(frozen=True, kw_only=True)
class Glue(Task):
    """One of SUBSETS; MNLI has a second test split, "test_mismatched".

    `source_dir` is the folder that holds SST-2/, MRPC/, …, or one of these; without
    them TFDS's `glue/SUBSET` is read. `tokenizer` is "byte" or the path of a
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
        known = f"subset must be one of {', '.join(SUBSETS)}, not {self.subset!r}"
        self.require(self.subset in SUBSETS, known)
        self.use_tokenizer(self.tokenizer)

    @property
    def num_classes(self) -> int:
        return len(SUBSETS[self.subset].classes)

    @property
    def label_names(self) -> list[str]:
        return list(SUBSETS[self.subset].classes.values())

    @property
    def num_texts(self) -> int:
        return len(SUBSETS[self.subset].texts)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*SPLITS, *SUBSETS[self.subset].files)))

    def encode(self, texts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a text is left out."""
        pairs = [(text,) if isinstance(text, str) else text for text in texts]
        return super().encode([tuple(map(str.strip, pair)) for pair in pairs])

    def source_files(self) -> list[Path]:
        place = self.find_source(Path())
        paths = (self._find(place, split) for split in SUBSETS[self.subset].files)
        return [path for path in paths if path]

    def _find(self, place: Path, split: str) -> Path | None:
        folder, *_, files = SUBSETS[self.subset]
        names = [x for file in files[split][:-1] for x in (f"{folder}/{file}", file)]
        return archives.find(names, place)

    def make_splits(self, source: Path) -> dict[str, Split]:
        files = SUBSETS[self.subset].files
        return {split: self.encode_split(*self._read(source, split)) for split in files}

    def _read(self, place: Path, split: str) -> Table:
        folder, texts, label, classes, files = SUBSETS[self.subset]
        if path := self._find(place, split):
            return read_table(path, texts, label, [*classes])
        prepared = archives.find_tfds(f"glue/{self.subset}", self.source_dir)
        rows = prepared and archives.read_tfds(prepared, files[split][-1])
        if not rows:
            get = "get it from https://gluebenchmark.com/tasks"
            missing = f"{place} has no {folder}/{files[split][0]}"
            raise DataError(f"{missing}: {get} and name its folder as source_dir")
        columns = TFDS_TEXTS.get(self.subset, texts)
        rows.sort(key=lambda row: row["idx"])  # the order of the lines
        found = [tuple(row[x].decode() for x in columns) for row in rows]
        return found, [int(row["label"]) for row in rows]


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(TextTask):
    """The files train, validation and test (.csv or .tsv) in `source_dir`.

    The first line names the columns, among them `text_column` and `label_column`. Only
    a CSV file may quote its fields. A tenth of train is drawn with `seed` for each of
    validation and test that has no file. `labels` are the classes as the files have
    them, divided by commas: "ham,spam".
    """

    name: ClassVar[str] = "labelled_texts"
    data_version: ClassVar[str] = "1.2.0"
    description: ClassVar[str] = "Texts of one's own to classify."
    files: ClassVar[str] = "*.[ct]sv"
    labels: str = "0,1"
    text_column: str = "text"
    label_column: str = "label"
    max_length: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = f"labels must be two or more, as 'ham,spam', not {self.labels!r}"
        self.require(self.num_classes >= 2, wrong)

    @property
    def label_names(self) -> list[str]:
        return list(dict.fromkeys(map(str.strip, self.labels.split(","))))

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a text is left out."""
        return super().encode([text.strip() for text in texts])

    def make_splits(self, source: Path) -> dict[str, Split]:
        files = self._find_splits()
        splits, columns = {}, ([self.text_column], self.label_column)
        for name in filter(files.get, SPLITS):
            texts, labels = read_table(files[name], *columns, self.label_names)
            splits[name] = self.encode_split([text for (text,) in texts], labels)
        return splits

    def _find_splits(self) -> dict[str, Path]:
        """The file of each split that has one; another table gets a line on stderr."""
        missing = f"source_dir ({self.source_dir}) must hold train.csv or train.tsv"
        self.require(self.source_dir is not None, missing)
        files: dict[str, Path] = {}
        for path in sorted(self.source_files()):
            name = path.stem.lower()
            split = OTHER_NAMES.get(name, name)
            if split not in SPLITS:
                print(f"{path} is not read: it is named for no split", file=sys.stderr)
            elif path.stem != split:
                raise DataError(
                    f"{path} is not read: name it {split}{path.suffix}, or remove it"
                )
            elif split in files:
                raise DataError(f"{files[split]} and {path} are one split: remove one")
            else:
                files[split] = path
        self.require("train" in files, missing)
        return files
