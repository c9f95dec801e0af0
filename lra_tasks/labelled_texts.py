"""Labelled texts: a CSV or TSV file of your own, one text and one label a line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lra_tasks.glue import read_table
from lra_tasks.split import SPLITS, Split
from lra_tasks.text import TextTask


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(TextTask):
    """The files train, validation and test (.csv or .tsv) in `source_dir`.

    The first line names the columns, among them `text_column` and `label_column`. Only
    a CSV file may quote its fields. A tenth of train is drawn with `seed` for each of
    validation and test that has no file. `labels` are the classes as the files have
    them, divided by commas: "ham,spam".
    """

    name: ClassVar[str] = "labelled_texts"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Texts of one's own to classify."
    labels: str = "0,1"
    text_column: str = "text"
    label_column: str = "label"
    max_length: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(num_classes=len(self.label_names))
        wrong = f"labels must be two or more, as 'ham,spam', not {self.labels!r}"
        self.require(self.num_classes >= 2, wrong)

    @property
    def label_names(self) -> Sequence[str]:
        return tuple(dict.fromkeys(map(str.strip, self.labels.split(","))))

    def source_files(self) -> list[Path]:
        folder = Path(str(self.source_dir))
        return [*folder.glob("*.csv"), *folder.glob("*.tsv")]

    def make_splits(self, source: Path) -> dict[str, Split]:
        files = {path.stem: path for path in self.source_files() if path.stem in SPLITS}
        wanted = f"source_dir ({self.source_dir}) must hold train.csv or train.tsv"
        self.require("train" in files, wanted)
        splits, columns = {}, ([self.text_column], self.label_column)
        for name, path in files.items():
            texts, labels = read_table(path, *columns, self.label_names)
            splits[name] = self.encode_split([text for (text,) in texts], labels)
        return splits
