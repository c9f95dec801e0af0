"""LabelledTexts: tables of a user's own texts, to classify."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lra_tasks.errors import DataError
from lra_tasks.found_classes import FoundClasses, find_split
from lra_tasks.split import SPLITS, Split
from lra_tasks.tables import find_classes, read_table
from lra_tasks.text import TextTask

OTHER_COLUMNS = (
    "other names are --config.task.text_column and --config.task.label_column"
)
# It is worth a word if more than this share of texts is cut, or of a batch is padding.
MUCH_CUT = 0.05
MUCH_PADDING = 0.5


@dataclass(frozen=True, kw_only=True)
class LabelledTexts(TextTask, FoundClasses):
    """The files train, validation and test (.csv or .tsv) in `source_dir`.

    The first line names the columns, among them `text_column` and `label_column`. Only
    a CSV file may quote its fields. If test has no file, a tenth of train is drawn for
    it with `seed`; then, if validation has none, a tenth of the rest. The classes are
    those of train.
    """

    name: ClassVar[str] = "labelled_texts"
    data_version: ClassVar[str] = "1.2.0"
    description: ClassVar[str] = "Texts of one's own to classify."
    files: ClassVar[str] = "*.[ct]sv"
    source: ClassVar[str] = "train.csv or train.tsv"
    text_column: str = "text"
    label_column: str = "label"
    max_length: int = 1024
    seed: int = 0

    def find_classes(self) -> list[str]:
        files, _ = self._find_files()
        return find_classes(
            files["train"],
            texts=[self.text_column],
            label=self.label_column,
            advice=OTHER_COLUMNS,
        )

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; white space around a text is left out."""
        return super().encode([text.strip() for text in texts])

    def make_splits(self, source: Path) -> dict[str, Split]:
        files, unread_files = self._find_files()
        for path in unread_files:
            print(f"{path} is not read: it is named for no split", file=sys.stderr)
        splits = {}
        for name, file in files.items():
            rows, labels = read_table(
                file,
                texts=[self.text_column],
                label=self.label_column,
                classes=self.label_names,
                advice=OTHER_COLUMNS,
            )
            texts = [text.strip() for (text,) in rows]
            num_empty = texts.count("")
            self.require(
                num_empty == 0,
                f"{file} has {num_empty:,} empty texts: remove these lines",
            )
            if name == "train" and texts:
                print(self.describe_lengths(texts), file=sys.stderr)
            splits[name] = self.encode_split(texts, labels)
        return splits

    def describe_lengths(self, texts: Sequence[str]) -> str:
        """Says how long texts are and, if max_length does not fit them, which does."""
        if self.vocabulary is None:
            unit = "bytes"
            lengths = np.array([len(text.encode(errors="replace")) for text in texts])
        else:
            unit = "tokens, [CLS] and [SEP] among them"
            lengths = np.array([2 + len(ids) for ids in self.vocabulary.encode(texts)])
        median, most, longest = np.percentile(
            lengths, [50, 95, 100], method="inverted_cdf"
        )
        text = (
            f"{self.name}: half of the texts of train have up to {median:,} {unit}, "
            f"95 % up to {most:,}, the longest {longest:,}"
        )
        if self.num_bytes is not None:
            return text  # They are cut on purpose.

        share_cut = np.mean(lengths > self.max_length)
        padding = 1 - np.mean(np.minimum(lengths, self.max_length)) / self.max_length
        if share_cut > MUCH_CUT:
            text += (
                f"; max_length={self.max_length} cuts {share_cut:.0%} of them, "
                f"--config.task.max_length={_round_up(most)} would cut 5 % at most"
            )
        elif padding > MUCH_PADDING and _round_up(most) < self.max_length:
            share_held = "95 % of" if longest > _round_up(most) else "all"
            text += (
                f"; max_length={self.max_length} makes {padding:.0%} of a batch "
                f"padding, --config.task.max_length={_round_up(most)} holds "
                f"{share_held} the texts in less time"
            )
        return text

    def _find_files(self) -> tuple[dict[str, Path], list[Path]]:
        """Finds the file of each split, and the tables that are not read."""
        files: dict[str, Path] = {}
        unread_files = []
        for path in sorted(self.source_files()):
            split = find_split(path.stem)
            if split is None:
                unread_files.append(path)
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
            f"source_dir ({self.source_dir}) must hold {self.source}",
        )
        ordered_files = {split: files[split] for split in SPLITS if split in files}
        return ordered_files, unread_files


def _round_up(length: int) -> int:
    """The next length that 8 divides, a round number for a user."""
    return -(-int(length) // 8) * 8
