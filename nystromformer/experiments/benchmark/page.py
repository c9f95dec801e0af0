"""The benchmark's page: attentions down, lengths or tasks across."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.benchmark.attentions import PASSES
from nystromformer.experiments.benchmark.specs import WHOLE_SOFTMAX
from nystromformer.experiments.benchmark.timing import MIN_SECONDS, Program, measure
from nystromformer.experiments.plotting import (
    line_style,
    new_figure,
    save_figure,
    set_value_ticks,
)
from nystromformer.training.output import write_text

Row = Mapping[str, Any]  # one that `timing.measure` returns
PAGE = "README.md"
FILE = "benchmark.json"
DASH = "—"
UNITS = ("ms", "MiB")
FIT_FROM = 2048  # costs that do not depend on the length show below it
NOTES = f"""\
- Time: median (quartiles) of rounds in which all programs of a length or task take
  turns, PyTorch's among them, each often enough for {MIN_SECONDS * 1e3:.0f} ms. On an
  accelerator calls are waited for together. Compiling is not included.
- Memory: what the compiled program allocates for arguments, results and temporaries.
  PyTorch reports no such number.
- × in tables of time: how many times as fast as softmax. × in tables of memory: the
  memory of {WHOLE_SOFTMAX}, or of softmax if that was not measured, over the program's.
- {WHOLE_SOFTMAX}: exact attention that holds all scores at once, as in the paper's
  Table 1. softmax is exact, too, but does not hold them: it is cuDNN's kernel in half
  precision on an NVIDIA GPU, and else computes the scores in blocks (on an accelerator,
  if there are more than 2²⁷). Its memory grows with the length, not with its square.
- Exponent: p of c · lengthᵖ, fitted from length {FIT_FROM:,} on.
- In N: gradient accumulation over N parts of a batch, with N length buckets.
"""


def write_benchmark(
    groups: Iterable[list[Program]],
    out: Path,
    rounds: int,
    library_versions: Mapping[str, str] | None = None,
) -> None:
    """Measures groups of programs, and writes JSON, page and figure after each.

    Args:
      groups: programs that are measured in turns.
      out: the folder.
      rounds: how often each program is measured; 0 measures memory alone.
      library_versions: the versions of the other libraries that are measured.

    Raises:
      ConfigError: if the folder has other files.
    """
    markdown.check_folder(out, FILE)
    made_by = provenance.collect()
    made_by["versions"] |= library_versions or {}
    rows: list[dict[str, Any]] = []
    has_time = rounds > 0
    for programs in groups:
        # The folder is made when the first group has come. Wrong settings are an error
        # before that, and leave no empty folder behind.
        out.mkdir(parents=True, exist_ok=True)
        new_rows = measure(programs, rounds)
        print("\n".join(make_tables(new_rows, has_time)), flush=True)
        rows.extend(new_rows)
        # Before the figures: a folder that has this file may be written again.
        write_text(out / FILE, json.dumps({**made_by, "rows": rows}, indent=1))
        lines = [*make_tables(rows, has_time), NOTES]
        if not _is_of_tasks(rows):
            lines = [*_save_figures(rows, out, has_time), *lines]
        write_text(out / PAGE, markdown.make_page("Benchmark", made_by, lines))


def _save_figures(rows: Sequence[Row], out: Path, has_time: bool) -> list[str]:
    """Draws the figures, and returns the lines of the page that show them."""
    save_figure(draw_curves(rows, has_time), out / "attention")
    lines = ["![Costs against the length](attention.png)\n"]
    figure = draw_landmarks(rows, has_time)
    if figure is not None:
        save_figure(figure, out / "landmarks")
        lines.append("![Costs against the landmarks](landmarks.png)\n")
    return lines


def find_value(row: Row, unit: str) -> float | None:
    """Returns the median time or the memory of a row; None if it is not known."""
    if unit == "ms":
        return 1e3 * float(np.median(row["seconds"])) if row["seconds"] else None
    return None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20


def make_tables(rows: Sequence[Row], has_time: bool = True) -> list[str]:
    """Returns the lines of a table for each pass and each unit."""
    lines = []
    for name in dict.fromkeys(row["key"]["what"] for row in rows):
        rows_of_pass = [row for row in rows if row["key"]["what"] == name]
        for unit in _units(has_time):
            lines.extend([f"## {name.capitalize()}: {unit}", ""])
            lines.extend([*_value_table(rows_of_pass, unit, has_time), ""])
    return lines


def _units(has_time: bool) -> tuple[str, ...]:
    """The units that were measured."""
    return UNITS if has_time else UNITS[1:]


def _value_table(rows: Sequence[Row], unit: str, has_time: bool) -> list[str]:
    """The table of one unit: values, factors of the reference, and exponents."""
    row_of_cell = {(row["key"]["attention"], _format_column(row)): row for row in rows}
    columns = list(dict.fromkeys(map(_format_column, rows)))
    header = ["attention", *columns]
    has_exponents = not _is_of_tasks(rows)
    if has_exponents:
        header.append("exponent")
    curve_of_attention = find_curves(rows, unit) if has_exponents else {}
    labels = dict.fromkeys(row["key"]["attention"] for row in rows)
    reference = "softmax"
    if unit == "MiB" and WHOLE_SOFTMAX in labels:
        reference = WHOLE_SOFTMAX

    table_rows = []
    for label in labels:
        cells = [
            _format_cell(
                row_of_cell.get((label, column)),
                row_of_cell.get((reference, column)),
                unit=unit,
                has_time=has_time,
            )
            for column in columns
        ]
        if has_exponents:
            cells.append(fit_exponent(curve_of_attention.get(label, {})))
        table_rows.append([label, *cells])
    return markdown.make_table(header, table_rows)


def _is_of_tasks(rows: Sequence[Row]) -> bool:
    """Whether train steps of tasks were measured, not attentions at some lengths."""
    return "task" in rows[0]["key"]


def _format_column(row: Row) -> str:
    """The heading of a row's column, as in "2,048" or "text 32 × 4,000"."""
    key = row["key"]
    length = f"{key['length']:,}"
    if "task" in key:
        return f"{key['task']} {key['batch_size']} × {length}"
    return length


def _format_cell(
    row: Row | None, reference: Row | None, *, unit: str, has_time: bool
) -> str:
    """As in "9.92 (9.8–10.1) · 17×", which is the reference over the row."""
    if row is None:
        return DASH
    number = find_value(row, unit)
    if number is None:
        has_failed = has_time and not row["seconds"]
        return "out of memory" if has_failed else DASH

    text = f"{number:.4g}"
    if unit == "ms":
        lower, upper = 1e3 * np.quantile(row["seconds"], (0.25, 0.75))
        text = f"{number:.3g} ({lower:.3g}–{upper:.3g})"
    reference_number = find_value(reference, unit) if reference else None
    if reference is row or not reference_number:
        return text
    factor = reference_number / number
    num_digits = 0 if factor >= 10 else 1
    return f"{text} · {factor:,.{num_digits}f}×"


def fit_exponent(curve: Mapping[int, float]) -> str:
    """Formats p of c · lengthᵖ, which is fitted to costs by length.

    The fit is by least squares of logarithms, from length FIT_FROM on; it is a dash if
    there are fewer than two such lengths.
    """
    lengths = [length for length in curve if length >= FIT_FROM]
    if len(lengths) < 2:
        return DASH
    costs = [curve[length] for length in lengths]
    slope, _ = np.polyfit(np.log(lengths), np.log(costs), deg=1)
    return f"{slope:z.2f}"


def find_curves(rows: Sequence[Row], unit: str) -> dict[str, dict[int, float]]:
    """Returns the known values: attention -> length -> value."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        number = find_value(row, unit)
        if number:
            key = row["key"]
            values.setdefault(key["attention"], {})[key["length"]] = number
    return values


def draw_curves(rows: Sequence[Row], has_time: bool = True) -> Figure:
    """Draws costs against the length: a row of panels for each pass."""
    units = _units(has_time)
    figure = new_figure(len(PASSES), len(units))
    lengths = sorted({row["key"]["length"] for row in rows})
    panels = [(name, unit) for name in PASSES for unit in units]
    labels = dict.fromkeys(row["key"]["attention"] for row in rows)
    styles = {label: line_style(index) for index, label in enumerate(labels)}
    for axes, (name, unit) in zip(figure.axes, panels, strict=True):
        rows_of_pass = [row for row in rows if row["key"]["what"] == name]
        for label, curve in find_curves(rows_of_pass, unit).items():
            axes.plot(
                list(curve),
                list(curve.values()),
                marker=".",
                label=label,
                **styles[label],
            )
        axes.set(title=name, ylabel=unit, xlabel="length", xscale="log", yscale="log")
        _set_ticks(axes, lengths)
    _add_legend(figure, num_columns=len(units))
    return figure


def draw_landmarks(rows: Sequence[Row], has_time: bool = True) -> Figure | None:
    """Draws the costs of Nyström attention against its number of landmarks.

    There is a row of panels for each pass, and a line for each length, with the
    convolution of V and without it.

    Returns:
      The figure; None if there is but one number of landmarks.
    """
    nystrom_rows = [row for row in rows if "num_landmarks" in row["key"]["options"]]
    counts = sorted({row["key"]["options"]["num_landmarks"] for row in nystrom_rows})
    if len(counts) < 2:
        return None

    lines = dict.fromkeys(_name_line(row) for row in nystrom_rows)
    units = _units(has_time)
    figure = new_figure(len(PASSES), len(units))
    panels = [(name, unit) for name in PASSES for unit in units]
    for axes, (name, unit) in zip(figure.axes, panels, strict=True):
        for index, line in enumerate(lines):
            curve = {}
            for row in nystrom_rows:
                number = find_value(row, unit)
                if number and row["key"]["what"] == name and _name_line(row) == line:
                    curve[row["key"]["options"]["num_landmarks"]] = number
            points = sorted(curve.items())
            axes.plot(
                [count for count, _ in points],
                [number for _, number in points],
                marker=".",
                label=line,
                **line_style(index),
            )
        axes.set(
            title=name, ylabel=unit, xlabel="landmarks", xscale="log", yscale="log"
        )
        _set_ticks(axes, counts)
    _add_legend(figure, num_columns=len(units))
    return figure


def _name_line(row: Row) -> str:
    """The row without its size, as in "nystrom + convolution of 35, 512 tokens"."""
    key = row["key"]
    name = re.sub(r"-\d+", "", key["attention"], count=1)
    return f"{name}, {key['length']:,} tokens"


def _set_ticks(axes: Any, numbers: Sequence[int]) -> None:
    """Sets the ticks of both axes, and those of x to these numbers."""
    axes.set_xticks(numbers, [f"{number:,}" for number in numbers], rotation=30)
    axes.minorticks_off()
    set_value_ticks(axes)


def _add_legend(figure: Figure, num_columns: int) -> None:
    """Adds the legend of all panels beside the last one of the first row."""
    figure.axes[num_columns - 1].legend(
        handles=figure.axes[0].lines,
        fontsize="small",
        loc="center left",
        bbox_to_anchor=(1, 0.5),
    )
