"""ListOps: nested lists of operators over digits; the label is the value.

`[MAX 4 [MED 1 9 2 ] 0 ]` is 4. Nangia & Bowman 2018 (arXiv:1804.06028), in the
lengths of Long Range Arena (Tay et al. 2021, arXiv:2011.04006). The expressions are
drawn here; the released files are read when `source_dir` names their folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra_tasks.base import Task
from lra_tasks.listops_generator import (
    CLOSE,
    DIGITS,
    FIRST_DIGIT,
    FIRST_OPERATOR,
    TOKEN_ID,
    VOCABULARY,
    apply,
    generate,
)
from lra_tasks.split import SPLITS, DataError, Split, pad

RELEASED_FILES = {  # in `source_dir`
    "train": "basic_train.tsv",
    "validation": "basic_val.tsv",
    "test": "basic_test.tsv",
}


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """The benchmark by default; `generate` says what the options of the process mean.

    With `source_dir`, a folder of RELEASED_FILES, these are read instead, and no other
    option but `max_length` has an effect.
    """

    name: ClassVar[str] = "listops"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Nested lists of operators; the label is their value."
    homepage: ClassVar[str] = "https://github.com/nyu-mll/spinn/tree/listops-release"
    citation: ClassVar[str] = "Nangia and Bowman, ListOps, NAACL SRW 2018"
    vocab_size: ClassVar[int] = len(VOCABULARY)
    num_classes: ClassVar[int] = 10
    max_length: int = 2000
    num_train: int = 96_000
    num_validation: int = 2_000
    num_test: int = 2_000
    min_tokens: int = 501
    max_tokens: int = 1999
    max_depth: int = 10
    max_args: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source_dir:
            return
        counts = (self.num_train, self.num_validation, self.num_test)
        self.require(min(counts) >= 1, f"each split needs an example, not {counts}")
        self.require(self.max_depth >= 2, "max_depth must be at least 2")
        self.require(2 <= self.max_args <= 100, "max_args must be 2 to 100")
        most = min(self.max_tokens, self.max_length)
        limits = f"4 (one operator, two digits) to {most}, not {self.min_tokens}"
        fits = 4 <= self.min_tokens <= most
        self.require(fits, f"min_tokens must be {limits}")

    def source_files(self) -> list[Path]:
        folder = Path(str(self.source_dir))
        return [*folder.glob("basic_*.tsv")]

    def cache_key(self) -> dict[str, Any]:
        key = super().cache_key()
        kept = ("max_length", "source_dir") if self.source_dir else key
        return {name: key[name] for name in kept}

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; the parentheses of the released files say nothing more."""
        rows, most = [], self.max_length
        for text in texts:
            tokens = text.replace("(", " ").replace(")", " ").split()
            try:
                ids = bytes(map(TOKEN_ID.__getitem__, tokens))
            except KeyError as error:
                raise DataError(f"{error} is not a token of ListOps") from None
            wrong = f"{len(ids):,} tokens are not from 1 to max_length={most}"
            self.require(0 < len(ids) <= most, wrong)
            rows.append(np.frombuffer(ids, np.uint8))
        return pad(rows, most, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(VOCABULARY[token] for token in tokens)

    def _read_released(self, path: Path) -> Split:
        header, *lines = path.read_text("utf-8").splitlines() or [""]
        if header != "Source\tTarget" or not lines:
            raise DataError(
                f"{path} is not lines of Source<tab>Target below that header"
            )
        columns = [line.partition("\t") for line in lines]
        sources, _, targets = zip(*columns, strict=True)
        if wrong := {*targets} - {*DIGITS}:
            raise DataError(f"{path} has the target {min(wrong)!r}, which is no digit")
        try:
            return self.encode_split(sources, targets)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            files = RELEASED_FILES.items()
            return {name: self._read_released(source / file) for name, file in files}
        counts = (self.num_train, self.num_validation, self.num_test)
        process = ("min_tokens", "max_tokens", "max_length", "max_depth", "max_args")
        options = {name: getattr(self, name) for name in process}
        arrays = generate(self.seed, sum(counts), **options)
        ends = np.cumsum(counts)[:-1]  # one draw, cut in three: no tree twice
        splits = map(Split, *(np.split(array, ends) for array in arrays))
        return dict(zip(SPLITS, splits, strict=True))

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds two rules that look at the root; a root that is a digit is the answer.

        "root operator": the most frequent label of that root in `train`. "root operator
        and its literal arguments": the root applied to those of its arguments that are
        digits, and the first rule where there are none.
        """
        counts = np.zeros((self.vocab_size, self.num_classes), int)
        np.add.at(counts, (train.inputs[:, 0], train.labels), 1)
        roots = test.inputs[:, 0].astype(int)
        digits, usual = roots - FIRST_DIGIT, counts.argmax(axis=1)[roots]
        by_root = np.where(digits >= 0, digits, usual)
        opens = (test.inputs >= FIRST_OPERATOR) & (test.inputs < CLOSE)
        depth = np.cumsum(opens, axis=1) - np.cumsum(test.inputs == CLOSE, axis=1)
        literal = (depth == 1) & (test.inputs >= FIRST_DIGIT)
        has, by_literals = literal.any(axis=1), by_root.copy()
        kind, arity = roots[has] - FIRST_OPERATOR, literal.sum(axis=1)[has]
        by_literals[has] = apply(kind, arity, test.inputs[literal] - FIRST_DIGIT)
        return super().floors(train, test) | {
            "root operator": float(np.mean(by_root == test.labels)),
            "root operator and its literal arguments": float(
                np.mean(by_literals == test.labels)
            ),
        }
