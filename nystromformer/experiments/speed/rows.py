"""The rows of the benchmark: what was measured, its costs, and how it is named."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

TIME = "ms"
MEMORY = "MiB"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowKey:
    """What a row has measured.

    Attributes:
      what: the pass of an attention, or "train step".
      attention: the name of the row's attention, as in "nystrom-64".
      task: the task of a train step; None of an attention alone.
      options: all options of the attention.
      length: the number of tokens.
      batch_size: the number of sequences.
      num_heads, head_dim: those of an attention alone.
      dtype: that of the inputs or of the model.
      source: who has published the time; None if we have measured it.
    """

    what: str
    attention: str
    task: str | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    length: int
    batch_size: int
    num_heads: int | None = None
    head_dim: int | None = None
    dtype: str
    source: str | None = None

    @property
    def num_landmarks(self) -> int | None:
        """The number of landmarks of an attention that has them."""
        return self.options.get("num_landmarks")

    def to_json(self) -> dict[str, Any]:
        """Returns the fields for JSON, without those that are None."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value is not None}


@dataclasses.dataclass(kw_only=True)
class Row:
    """What a program costs, or a time that others have published.

    Attributes:
      key: what it is.
      peak_bytes: its memory; None if unknown.
      path: the kernels that compute it, as in "XLA, cuDNN's attention"; "" if unknown.
      seconds: the time of one step in each round; empty without rounds, or if the
        memory is too small.
    """

    key: RowKey
    peak_bytes: int | None
    path: str = ""
    seconds: list[float]

    def value(self, unit: str) -> float | None:
        """Returns the median time or the memory; None if it is not known."""
        if unit == TIME:
            return 1e3 * float(np.median(self.seconds)) if self.seconds else None
        return None if self.peak_bytes is None else self.peak_bytes / 2**20

    def to_json(self) -> dict[str, Any]:
        """Returns the row for JSON."""
        return {
            "key": self.key.to_json(),
            "peak_bytes": self.peak_bytes,
            "path": self.path,
            "seconds": self.seconds,
        }


class Names(NamedTuple):
    """How the rows of a page are named: by their attention and what else differs.

    | a page with              | a row is named     | and its column                |
    | ------------------------ | ------------------ | ----------------------------- |
    | one dtype, one size      | "linear"           | "4,096"                       |
    | several dtypes           | "linear, bfloat16" | "4,096"                       |
    | several sizes            | "linear"           | "4 × 4,096 (16 heads of 128)" |
    | the train steps of tasks | "linear"           | "text 32 × 4,000"             |

    Attributes:
      has_dtypes: whether the rows have several dtypes.
      has_sizes: whether attentions have several batch sizes or numbers of heads.
    """

    has_dtypes: bool
    has_sizes: bool

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Names":
        """Finds what differs among the rows of a page."""
        keys = [row.key for row in rows]
        dtypes = {key.dtype for key in keys}
        sizes = {(key.batch_size, key.num_heads, key.head_dim) for key in keys}
        return cls(has_dtypes=len(dtypes) > 1, has_sizes=len(sizes) > 1)

    def label(self, row: Row) -> str:
        """Returns the name of the row."""
        if self.has_dtypes:
            return f"{row.key.attention}, {row.key.dtype}"
        return row.key.attention

    def column(self, row: Row) -> str:
        """Returns the heading of the row's column."""
        key = row.key
        length = f"{key.length:,}"
        if key.task is not None:
            return f"{key.task} {key.batch_size} × {length}"
        if self.has_sizes:
            return (
                f"{key.batch_size} × {length} ({key.num_heads} heads of {key.head_dim})"
            )
        return length


def list_units(has_time: bool) -> list[str]:
    """Returns the units of what was measured; has_time: not memory alone."""
    return [TIME, MEMORY] if has_time else [MEMORY]


def find_curves(
    rows: Iterable[Row], names: Names, unit: str
) -> dict[str, dict[int, float]]:
    """Returns the known values: label -> length -> value."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        number = row.value(unit)
        if number:
            values.setdefault(names.label(row), {})[row.key.length] = number
    return values
