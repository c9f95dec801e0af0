"""LabelledTexts: tables of a user's own texts, to classify."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks.errors import DataError
from lra_tasks.split import SPLITS, Split
from lra_tasks.tables import read_table
from lra_tasks.text import TextTask

# Names that people give to the validation split; such a file is not read.
OTHER_NAMES = {"val": "validation", "valid": "validation", "dev": "validation"}


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(TextTask):
    """The files train, validation and test (.csv or .tsv) in `source_dir`.

    The first line names the columns, among them `text_column` and `label_column`. Only
    a CSV file may quote its fields. If test has no file, a tenth of train is drawn for
    it with `seed`; then, if validation has none, a tenth of the rest. `labels` are the
    classes as the files have them, divided by commas: "ham,spam".
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
        self.require(
            self.num_classes >= 2,
            f"labels must be two or more, as 'ham,spam', not {self.labels!r}",
        )

    @property
    def label_names(self) -> list[str]:
        names = [name.strip() for name in self.labels.split(",")]
        return list(dict.fromkeys(names))

    @property
    def num_classes(self) -> int:
        return len(self.label_names)

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a text is left out."""
        return super().encode([text.strip() for text in texts])

    def make_splits(self, source: Path) -> dict[str, Split]:
        splits = {}
        for name, file in self._find_files().items():
            rows, labels = read_table(
                file,
                texts=[self.text_column],
                label=self.label_column,
                classes=self.label_names,
            )
            num_empty = sum(not text.strip() for (text,) in rows)
            self.require(
                num_empty == 0,
                f"{file} has {num_empty:,} empty texts: remove these lines",
            )
            splits[name] = self.encode_split([text for (text,) in rows], labels)
        return splits

    def _find_files(self) -> dict[str, Path]:
        """Finds the file of each split; prints the tables that are not read."""
        self.require(
            self.source_dir is not None,
            "source_dir must name the folder that has train.csv or train.tsv",
        )
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
        self.require(
            "train" in files,
            f"source_dir ({self.source_dir}) must hold train.csv or train.tsv",
        )
        return {split: files[split] for split in SPLITS if split in files}
