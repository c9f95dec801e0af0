"""ListOps: nested lists of operators over digits; the label is the value.

`[MAX 4 [MED 1 9 2 ] 0 ]` is 4; MED is the median, truncated, and SM the sum modulo
10. Nangia & Bowman 2018 (arXiv:1804.06028), in the lengths of Long Range Arena (Tay et
al. 2021, arXiv:2011.04006). The expressions are drawn by `listops_generator`; the
released files are read when `source_dir` names their folder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra_tasks.archives import UNPACKED, find
from lra_tasks.errors import DataError
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
from lra_tasks.split import Split, check_length, pad, report_other_size
from lra_tasks.tables import read_table
from lra_tasks.task import Task

# The released files are basic_NAME.tsv.
RELEASED_NAMES = {"train": "train", "validation": "val", "test": "test"}
NUM_RELEASED = {"train": 96_000, "val": 2_000, "test": 2_000}


@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """By default the data of the benchmark, drawn anew.

    From the root at depth 1: below `max_depth` a node is an operator with probability
    0.25, at `max_depth` never, otherwise a digit. Operators, digits and 2 to `max_args`
    arguments are uniform. Of these trees those are kept for which min_tokens ≤ length ≤
    min(max_tokens, max_length), length counting operators, digits and closing brackets:
    500 < length < 2000 as in the paper. A lone digit is never kept.

    With `source_dir`, the folder of the released basic_train.tsv, basic_val.tsv and
    basic_test.tsv or of the unpacked release, these are read, and no other option but
    `max_length` has an effect.
    """

    name: ClassVar[str] = "listops"
    data_version: ClassVar[str] = "1.0.0"
    description: ClassVar[str] = "Nested lists of operators; the label is their value."
    homepage: ClassVar[str] = "https://github.com/nyu-mll/spinn/tree/listops-release"
    citation: ClassVar[str] = "Nangia and Bowman, ListOps, NAACL SRW 2018"
    vocab_size: ClassVar[int] = len(VOCABULARY)
    num_classes: ClassVar[int] = 10
    files: ClassVar[str] = "basic_*.tsv"
    augmentations: ClassVar[tuple[str, ...]] = ("shuffle_arguments",)
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
        longest = min(self.max_tokens, self.max_length)
        self.require(
            4 <= self.min_tokens <= longest,
            f"min_tokens must be 4 (one operator, two digits) to {longest}, not "
            f"{self.min_tokens}",
        )

    def cache_key(self) -> dict[str, Any]:
        """As `Task.cache_key`; a `source_dir` leaves out the options for drawing."""
        key = super().cache_key()
        if not self.source_dir:
            return key
        return {name: key[name] for name in ("max_length", "source_dir")}

    def make_splits(self, source: Path) -> dict[str, Split]:
        if self.source_dir:
            return {
                split: self._read_released(source, name)
                for split, name in RELEASED_NAMES.items()
            }
        # All splits are one draw, so that no expression is drawn twice.
        sizes = (self.num_train, self.num_validation, self.num_test)
        return self.generate(sum(sizes)).cut(sizes)

    def generate(self, num_examples: int) -> Split:
        """Draws distinct expressions as the options say.

        Raises:
          DataError: if there are not as many.
        """
        return generate(
            num_examples,
            seed=self.seed,
            min_tokens=self.min_tokens,
            max_tokens=self.max_tokens,
            max_length=self.max_length,
            max_depth=self.max_depth,
            max_args=self.max_args,
        )

    def find_source(self, data_dir: Path) -> Path:
        """Finds the folder of the released files: `source_dir`, or one below it."""
        folder = super().find_source(data_dir)
        release_folders = [f"{above}listops-1000/" for above in UNPACKED]
        names = [f"{below}basic_train.tsv" for below in ("", *release_folders)]
        file = find(names, folder)
        return file.parent if file else folder

    def _read_released(self, folder: Path, name: str) -> Split:
        path = folder / f"basic_{name}.tsv"
        if not path.exists():
            raise DataError(
                f"{path} is missing: source_dir must be the folder of basic_train.tsv, "
                "basic_val.tsv and basic_test.tsv, or of the unpacked LRA release"
            )
        rows, labels = read_table(
            path, texts=["Source"], label="Target", classes=DIGITS
        )
        report_other_size(
            path,
            count=len(labels),
            num_released=NUM_RELEASED[name],
            noun="expressions",
        )
        try:
            return self.encode_split([text for (text,) in rows], labels)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As `Task.encode`; parentheses, as in the released files, are ignored.

        Raises:
          DataError: for another token, and for a text that is not one expression.
        """
        rows = []
        for number, text in enumerate(texts, start=1):
            tokens = text.replace("(", " ").replace(")", " ").split()
            try:
                ids = [TOKEN_ID[token] for token in tokens]
            except KeyError as error:
                raise DataError(f"{error} is not a token of ListOps") from None
            check_length(self.name, len(ids), self.max_length)
            row = np.array(ids, np.uint8)
            depths = _depths(row)
            self.require(
                bool((depths[:-1] > 0).all()) and depths[-1] == 0,
                f"text {number}, {text!r:.60}, is not one expression: close each "
                "operator once, as in '[MAX 3 [MIN 8 5 ] ]'",
            )
            rows.append(row)
        return pad(rows, self.max_length, np.uint8)

    def decode(self, tokens: np.ndarray) -> str:
        return " ".join(VOCABULARY[token] for token in tokens)

    def floors(self, train: Split, test: Split) -> dict[str, float]:
        """Adds two rules that look at the root; a root that is a digit is the answer.

        "root operator": the most frequent label of that root in `train`. "root operator
        and its literal arguments": the root applied to those of its arguments that are
        digits, and the first rule where there are none.
        """
        by_root = self._guess_by_root(train, test)
        by_literals = _guess_by_literals(test, by_root)
        return {
            **super().floors(train, test),
            "root operator": float(np.mean(by_root == test.labels)),
            "root operator and its literal arguments": float(
                np.mean(by_literals == test.labels)
            ),
        }

    def _guess_by_root(self, train: Split, test: Split) -> np.ndarray:
        counts = np.zeros((self.vocab_size, self.num_classes), int)
        np.add.at(counts, (train.inputs[:, 0], train.labels), 1)
        roots = test.inputs[:, 0].astype(int)
        is_digit = roots >= FIRST_DIGIT
        return np.where(is_digit, roots - FIRST_DIGIT, counts.argmax(axis=1)[roots])


def _depths(tokens: np.ndarray) -> np.ndarray:
    """The number of operators that are open after each token, int `[…, L]`."""
    is_operator = (tokens >= FIRST_OPERATOR) & (tokens < CLOSE)
    is_close = tokens == CLOSE
    return np.cumsum(is_operator, axis=-1) - np.cumsum(is_close, axis=-1)


def _guess_by_literals(test: Split, by_root: np.ndarray) -> np.ndarray:
    """The root applied to its literal arguments; `by_root` where there are none."""
    is_literal = (_depths(test.inputs) == 1) & (test.inputs >= FIRST_DIGIT)

    arity = is_literal.sum(axis=1)
    has_literals = arity > 0
    guesses = by_root.copy()
    guesses[has_literals] = apply(
        kind=test.inputs[has_literals, 0].astype(int) - FIRST_OPERATOR,
        arity=arity[has_literals],
        arguments=test.inputs[is_literal] - FIRST_DIGIT,
    )
    return guesses
