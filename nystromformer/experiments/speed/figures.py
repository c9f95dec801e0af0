"""The figures of the benchmark: costs against the length, and against the landmarks."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from nystromformer.experiments.plotting import (
    attention_styles,
    name_lines,
    new_figure,
    set_value_ticks,
)
from nystromformer.experiments.speed.attentions import PASSES, WHOLE_SOFTMAX
from nystromformer.experiments.speed.rows import (
    TIME,
    Names,
    Row,
    find_curves,
    list_units,
)

MAX_LABELS = 6  # on the axis of lengths
# The lines of the small figure, by the names of their rows.
SUMMARY = {
    WHOLE_SOFTMAX: "exact, at once",
    "softmax": "exact, in blocks",
    "torch-softmax": "exact, PyTorch",
    "nystrom-64": "nystrom-64",
    "linear": "linear",
}
# Inches. The width of a page has 800 pixels or so, in which its texts can be read.
SUMMARY_SIZE = (8.5, 3.4)


def draw_summary(rows: Sequence[Row]) -> Figure | None:
    """Draws time and memory with the gradient, of the lines of SUMMARY alone.

    In the memory of exact attention that holds its scores at once the square of the
    length is seen. PyTorch does not say what it holds, and has no line there.

    Returns:
      The figure; None if one of ours was not measured.
    """
    attentions = {row.key.attention for row in rows}
    if not set(SUMMARY) - {"torch-softmax"} <= attentions:
        return None
    shown_rows = [
        dataclasses.replace(
            row, key=dataclasses.replace(row.key, attention=SUMMARY[row.key.attention])
        )
        for row in rows
        if row.key.attention in SUMMARY
    ]
    styles = {SUMMARY[name]: style for name, style in attention_styles(SUMMARY).items()}
    figure = new_figure(columns=2)
    figure.set_size_inches(SUMMARY_SIZE)
    for axes, unit in zip(figure.axes, list_units(has_time=True), strict=True):
        _draw_panel(axes, shown_rows, Names.of(shown_rows), PASSES[-1], unit, styles)
        what = "time" if unit == TIME else "memory"
        axes.set(title=f"{what} with the gradient")
    return figure


def draw_curves(rows: Sequence[Row], has_time: bool = True) -> Figure:
    """Draws costs against the length: a row of panels for each pass."""
    units = list_units(has_time)
    figure = new_figure(len(PASSES), len(units))
    panels = [(what, unit) for what in PASSES for unit in units]
    names = Names.of(rows)
    styles = attention_styles(dict.fromkeys(names.label(row) for row in rows))
    for axes, (what, unit) in zip(figure.axes, panels, strict=True):
        _draw_panel(axes, rows, names, what, unit, styles)
    return figure


def _draw_panel(
    axes: Any,
    rows: Sequence[Row],
    names: Names,
    what: str,
    unit: str,
    styles: Mapping[str, Mapping[str, Any]],
) -> None:
    """Draws one cost of one pass against the length, a line for each label."""
    rows_of_pass = [row for row in rows if row.key.what == what]
    for label, curve in find_curves(rows_of_pass, names, unit).items():
        axes.plot(
            list(curve), list(curve.values()), marker=".", label=label, **styles[label]
        )
    lengths = sorted({row.key.length for row in rows})
    _finish_panel(axes, lengths, title=what, xlabel="length", ylabel=unit)


def draw_landmarks(rows: Sequence[Row], has_time: bool = True) -> Figure | None:
    """Draws the costs of Nyström attention against its number of landmarks.

    There is a row of panels for each pass, and a line for each length, with the
    convolution of V and without it.

    Returns:
      The figure; None if there is but one number of landmarks, or each has sizes of
      its own.
    """
    nystrom_rows = [row for row in rows if row.key.num_landmarks]
    counts = sorted({row.key.num_landmarks or 0 for row in nystrom_rows})
    if len(counts) < 2 or Names.of(rows).has_sizes:
        return None

    lines = list(dict.fromkeys(_name_line(row) for row in nystrom_rows))
    styles = attention_styles(lines)
    units = list_units(has_time)
    figure = new_figure(len(PASSES), len(units))
    panels = [(what, unit) for what in PASSES for unit in units]
    for axes, (what, unit) in zip(figure.axes, panels, strict=True):
        for line in lines:
            curve: dict[Any, float] = {}
            for row in nystrom_rows:
                number = row.value(unit)
                if number and row.key.what == what and _name_line(row) == line:
                    curve[row.key.num_landmarks] = number
            points = sorted(curve.items())
            axes.plot(
                [count for count, _ in points],
                [number for _, number in points],
                marker=".",
                label=line,
                **styles[line],
            )
        _finish_panel(axes, counts, title=what, xlabel="landmarks", ylabel=unit)
    return figure


def _name_line(row: Row) -> str:
    """The row without its size, as in "nystrom + convolution of 35, 512 tokens"."""
    name = re.sub(r"-\d+", "", row.key.attention, count=1)
    return f"{name}, {row.key.length:,} tokens"


def _finish_panel(axes: Any, numbers: Sequence[int], **texts: str) -> None:
    """Sets scales, texts and ticks, those of x to these numbers, and names the lines.

    Of many numbers every second has a label, so that these can be read.
    """
    axes.set(xscale="log", yscale="log", **texts)
    step = 1 + (len(numbers) - 1) // MAX_LABELS
    labels = [
        f"{number:,}" if index % step == 0 else ""
        for index, number in enumerate(numbers)
    ]
    rotation = 30 if max(map(len, labels)) > len("65,536") else 0
    axes.set_xticks(numbers, labels, fontsize="small", rotation=rotation)
    axes.minorticks_off()
    set_value_ticks(axes.yaxis)
    name_lines(axes)
