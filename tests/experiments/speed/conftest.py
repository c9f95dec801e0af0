"""Rows of the benchmark that a test makes."""

import itertools
from typing import Any

from nystromformer.experiments.speed.rows import Row, RowKey

PASSES = ("forward", "forward+backward")


def make_key(
    attention: str, length: int = 4096, what: str = "forward", **more: Any
) -> RowKey:
    """The key of an attention in float32, or of what `more` says."""
    values = {"batch_size": 1, "dtype": "float32", **more}
    return RowKey(what=what, attention=attention, length=length, **values)


def make_row(
    attention: str = "linear",
    length: int = 4096,
    what: str = "forward",
    *,
    scale: int = 1,
    **more: Any,
) -> Row:
    """A measurement whose median is 3 milliseconds and 3 MiB, times the scale."""
    return Row(
        key=make_key(attention, length, what, **more),
        peak_bytes=scale * 3 * 2**20,
        path="XLA",
        seconds=[scale * milliseconds / 1000 for milliseconds in (1, 2, 3, 4, 9)],
    )


def landmark_rows(num_landmarks: int) -> list[Row]:
    """Nyström attention at two lengths, with and without the convolution."""
    rows = []
    for kernel_size, name in ((0, ""), (35, " + convolution of 35")):
        options = {"num_landmarks": num_landmarks, "conv_kernel_size": kernel_size}
        for length, what in itertools.product((512, 2_048), PASSES):
            rows.append(
                make_row(
                    f"nystrom-{num_landmarks}{name}",
                    length,
                    what,
                    scale=num_landmarks,
                    options=options,
                )
            )
    return rows
