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
from tqdm import tqdm

from lra_tasks.base import Task
from lra_tasks.listops_generator import generate
from lra_tasks.listops_language import (
    APPLY,
    CLOSE,
    FIRST_DIGIT,
    FIRST_OPERATOR,
    VOCABULARY,
    decode,
    encode,
    evaluate,
)
from lra_tasks.split import SPLITS, DataError, Split, pad, remove_overlap

RELEASED_FILES = {  # in `source_dir`
    "train": "basic_train.tsv",
    "validation": "basic_val.tsv",
    "test": "basic_test.tsv",
}


def read_released(path: Path, max_length: int) -> Split:
    """Reads a released file; DataError names a malformed line."""
    if not path.is_file():
        raise DataError(f"{path} is missing: source_dir must hold the released files")
    header, *lines = path.read_bytes().splitlines() or [b""]
    if header != b"Source\tTarget" or not lines:
        raise DataError(f"{path} is not lines of Source<tab>Target below that header")
    rows, labels = [], []
    for number, line in enumerate(tqdm(lines, path.name, disable=None), start=2):
        try:
            ids, label = _parse(line.decode())
            if len(ids) > max_length:
                raise DataError(f"{len(ids)} tokens, above max_length {max_length}")
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        rows.append(ids)
        labels.append(label)
    return Split(*pad(rows, max_length, np.uint8), np.array(labels, np.int32))


def _parse(line: str) -> tuple[np.ndarray, int]:
    source, _, target = line.partition("\t")
    ids = encode(source)
    value = evaluate(ids)
    if target != str(value):
        raise DataError(f"the target is {target!r}, but the expression's value {value}")
    return ids, value


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
        if self.source_dir is not None:
            return
        for option in ("num_train", "num_validation", "num_test"):
            self.require(getattr(self, option) > 0, f"{option} must be at least 1")
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
        rows, most = [encode(text) for text in texts], self.max_length
        for row in rows:
            wrong = f"{len(row):,} tokens are not from 1 to max_length={most}"
            self.require(0 < len(row) <= most, wrong)
        return pad(rows, self.max_length, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return decode(tokens)

    def make_splits(self, data_dir: Path) -> dict[str, Split]:
        if self.source_dir is not None:
            splits = {
                name: read_released(Path(self.source_dir) / file, self.max_length)
                for name, file in RELEASED_FILES.items()
            }
            return remove_overlap(self.name, splits)
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
        absent = counts.sum(axis=1) == 0
        counts[absent] = counts.sum(axis=0)  # roots that train lacks: the majority
        roots = test.inputs[:, 0]
        digits = roots.astype(int) - FIRST_DIGIT
        by_root = np.where(digits >= 0, digits, counts.argmax(axis=1)[roots])
        examples = zip(test.inputs, by_root, strict=True)
        by_literals = np.array([_apply_to_literals(*each) for each in examples])
        return super().floors(train, test) | {
            "root operator": float(np.mean(by_root == test.labels)),
            "root operator and its literal arguments": float(
                np.mean(by_literals == test.labels)
            ),
        }


def _apply_to_literals(ids: np.ndarray, fallback: int) -> int:
    """The root operator of `ids` `[L]` applied to its arguments that are digits."""
    opens = (ids >= FIRST_OPERATOR) & (ids < CLOSE)
    depth = np.cumsum(opens.astype(int) - (ids == CLOSE))
    literals = ids[(depth == 1) & (ids >= FIRST_DIGIT)].astype(int) - FIRST_DIGIT
    return APPLY[VOCABULARY[ids[0]]](literals.tolist()) if len(literals) else fallback
