"""The benchmark's page: attentions down, lengths or tasks across."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from matplotlib.figure import Figure

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.plotting import (
    attention_styles,
    name_lines,
    new_figure,
    save_figure,
    set_value_ticks,
)
from nystromformer.experiments.speed.attentions import PASSES, WHOLE_SOFTMAX
from nystromformer.experiments.speed.timing import MIN_SECONDS, Program, measure
from nystromformer.training.output import write_text

# One that `timing.measure` returns, or a published time: its key also has `source`.
Row = Mapping[str, Any]
FILE = "benchmark.json"
DASH = "—"
UNITS = ("ms", "MiB")
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
FIT_FROM = 2048  # costs that do not depend on the length show below it
# The notes below the tables. Each page has those that it needs.
TIME_NOTE = f"""\
- Time: median (quartiles) of rounds in which all programs of a length or task take
  turns, each often enough for {MIN_SECONDS * 1e3:.0f} ms. On an accelerator calls are
  waited for together. Compiling is not included. × is how many times as fast as softmax
  a program is."""
MEMORY_NOTE = """\
- Memory: what the compiled program allocates for arguments, results and temporaries.
  × is how many times less than {reference} it takes."""
TORCH_NOTE = (
    "- PyTorch's programs take turns with ours. It does not report their memory."
)
EXACT_NOTE = f"""\
- {WHOLE_SOFTMAX}: exact attention that holds all scores at once, as in the paper's
  Table 1. softmax is exact, too, but does not hold them: it is cuDNN's kernel in half
  precision on an NVIDIA GPU, and else computes the scores in blocks (on an accelerator,
  if there are more than 2²⁷). Its memory grows with the length, not with its square."""
EXPONENT_NOTE = f"- Exponent: p of c · lengthᵖ, fitted from length {FIT_FROM:,} on."
PARTS_NOTE = (
    "- In N: gradient accumulation over N parts of a batch, with N length buckets."
)


class Page(NamedTuple):
    """What a page of the benchmark has.

    Attributes:
      groups: its programs, made one group after another and measured in turns.
      published: rows that others have measured, at the end of the tables.
    """

    groups: Iterable[list[Program]]
    published: Sequence[Row] = ()


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
        keys = [row["key"] for row in rows]
        sizes = ("batch_size", "num_heads", "head_dim")
        return cls(
            has_dtypes=len({key.get("dtype") for key in keys}) > 1,
            has_sizes=len({tuple(key.get(x) for x in sizes) for key in keys}) > 1,
        )

    def label(self, row: Row) -> str:
        """Returns the name of the row."""
        key = row["key"]
        if self.has_dtypes:
            return f"{key['attention']}, {key['dtype']}"
        return key["attention"]

    def column(self, row: Row) -> str:
        """Returns the heading of the row's column."""
        key = row["key"]
        length = f"{key['length']:,}"
        if "task" in key:
            return f"{key['task']} {key['batch_size']} × {length}"
        if self.has_sizes:
            heads = f"{key['num_heads']} heads of {key['head_dim']}"
            return f"{key['batch_size']} × {length} ({heads})"
        return length


def write_missing_pages(
    pages: Mapping[str, Page],
    out: Path,
    rounds: int,
    library_versions: Mapping[str, str] | None = None,
) -> None:
    """Writes each page into a folder of its name, unless it is complete.

    A page that is not complete has ".unfinished" behind the name of its folder.

    Args:
      pages: the pages by the names of their folders.
      out: the folder of these folders.
      rounds, library_versions: as for `write_benchmark`.

    Raises:
      ConfigError: if a folder has other files.
    """
    for name in pages:
        folder = out / name
        is_complete = (folder / FILE).exists()
        if folder.exists() and not is_complete and any(folder.iterdir()):
            raise ConfigError(
                f"{folder} has no {FILE}, and so holds something else: move it, or "
                "name another --out"
            )
    for name, page in pages.items():
        folder = out / name
        if (folder / FILE).exists():
            print(f"{folder} is complete; delete it to measure it again", flush=True)
            continue
        unfinished = out / f"{name}.unfinished"
        write_benchmark(page, unfinished, rounds, library_versions)
        unfinished.rename(folder)
        jax.clear_caches()  # The next page has programs of its own.


def write_benchmark(
    page: Page,
    out: Path,
    rounds: int,
    library_versions: Mapping[str, str] | None = None,
) -> None:
    """Measures groups of programs, and writes JSON, page and figure after each.

    Args:
      page: what is measured.
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
    for programs in page.groups:
        # The folder is made when the first group has come. Wrong settings are an error
        # before that, and leave no empty folder behind.
        out.mkdir(parents=True, exist_ok=True)
        new_rows = measure(programs, rounds)
        print("\n".join(make_tables(new_rows, has_time)), flush=True)
        rows.extend(new_rows)
        # Before the figures: a folder that has this file may be written again.
        write_text(out / FILE, json.dumps({**made_by, "rows": rows}, indent=1))
        all_rows = [*rows, *page.published] if has_time else rows
        lines = [*make_tables(all_rows, has_time), *list_paths(rows)]
        lines.extend(list_notes(rows, has_time))
        lines.extend(list_sources(all_rows))
        if not _is_of_tasks(rows):
            lines = [*_save_figures(all_rows, out, has_time), *lines]
        write_text(out / "README.md", markdown.make_page("Benchmark", made_by, lines))


def _save_figures(rows: Sequence[Row], out: Path, has_time: bool) -> list[str]:
    """Draws the figures, and returns the lines of the page that show them."""
    lines = []
    figure = draw_summary(rows) if has_time else None
    if figure is not None:
        save_figure(figure, out / "summary")
        lines.append("![Exact attention, Nyström and linear](summary.png)\n")
    save_figure(draw_curves(rows, has_time), out / "attention")
    lines.append("![Costs against the length](attention.png)\n")
    figure = draw_landmarks(rows, has_time)
    if figure is not None:
        save_figure(figure, out / "landmarks")
        lines.append("![Costs against the landmarks](landmarks.png)\n")
    return lines


def list_paths(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each path: the kernels, and the attentions that they compute.

    An attention that has several paths is named with its columns.
    """
    names = Names.of(rows)
    columns: dict[str, dict[str, list[str]]] = {}  # label -> path -> columns
    for row in rows:
        if row["path"]:
            paths = columns.setdefault(names.label(row), {})
            paths.setdefault(row["path"], []).append(names.column(row))
    lines = []
    for path in sorted({path for paths in columns.values() for path in paths}):
        attentions = []
        for label, paths in columns.items():
            if path in paths and len(paths) == 1:
                attentions.append(label)
            elif path in paths:
                places = ", ".join(dict.fromkeys(paths[path]))
                attentions.append(f"{label} at {places}")
        lines.append(f"- Computed by {path}: {markdown.escape('; '.join(attentions))}")
    return lines


def list_notes(rows: Sequence[Row], has_time: bool) -> list[str]:
    """Returns what a reader of the tables of these rows needs to know."""
    names = {row["key"]["attention"] for row in rows}
    has_torch = any(name.startswith(("torch-", "hf-")) for name in names)
    has_parts = any(re.search(r" in \d+$", name) for name in names)
    reference = WHOLE_SOFTMAX if WHOLE_SOFTMAX in names else "softmax"
    notes = {
        TIME_NOTE: has_time,
        MEMORY_NOTE.format(reference=reference): True,
        TORCH_NOTE: has_torch,
        EXACT_NOTE: WHOLE_SOFTMAX in names,
        EXPONENT_NOTE: not _is_of_tasks(rows),
        PARTS_NOTE: has_parts,
    }
    return [note for note, is_needed in notes.items() if is_needed]


def list_sources(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each source of published times."""
    sources = dict.fromkeys(row["key"].get("source") for row in rows)
    return [f"- Published times: {source}" for source in sources if source]


def find_value(row: Row, unit: str) -> float | None:
    """Returns the median time or the memory of a row; None if it is not known."""
    if unit == "ms":
        return 1e3 * float(np.median(row["seconds"])) if row["seconds"] else None
    return None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20


def make_tables(rows: Sequence[Row], has_time: bool = True) -> list[str]:
    """Returns the lines of a table for each pass and each unit."""
    names = Names.of(rows)
    lines = []
    for what in dict.fromkeys(row["key"]["what"] for row in rows):
        for unit in _units(has_time):
            # Others publish times alone.
            shown_rows = [
                row
                for row in rows
                if row["key"]["what"] == what
                and (unit == "ms" or "source" not in row["key"])
            ]
            lines.extend([f"## {what.capitalize()}: {unit}", ""])
            lines.extend([*_value_table(shown_rows, names, unit, has_time), ""])
    return lines


def _units(has_time: bool) -> tuple[str, ...]:
    """The units that were measured."""
    return UNITS if has_time else UNITS[1:]


def _value_table(
    rows: Sequence[Row], names: Names, unit: str, has_time: bool
) -> list[str]:
    """The table of one unit: values, factors of the reference, and exponents."""
    row_of_cell = {(names.label(row), names.column(row)): row for row in rows}
    columns = list(dict.fromkeys(names.column(row) for row in rows))
    header = ["attention", *columns]
    has_exponents = not _is_of_tasks(rows)
    if has_exponents:
        header.append("exponent")
    curve_of_label = find_curves(rows, names, unit) if has_exponents else {}
    attentions = {row["key"]["attention"] for row in rows}
    is_of_all_scores = unit == "MiB" and WHOLE_SOFTMAX in attentions
    reference = WHOLE_SOFTMAX if is_of_all_scores else "softmax"
    reference_of_column = {
        (row["key"].get("dtype"), names.column(row)): row
        for row in rows
        if row["key"]["attention"].split(",")[0] == reference
    }

    table_rows = []
    for label in dict.fromkeys(names.label(row) for row in rows):
        cells = []
        for column in columns:
            row = row_of_cell.get((label, column))
            dtype = row["key"].get("dtype") if row else None
            reference_row = reference_of_column.get((dtype, column))
            cells.append(_format_cell(row, reference_row, unit=unit, has_time=has_time))
        if has_exponents:
            cells.append(fit_exponent(curve_of_label.get(label, {})))
        table_rows.append([label, *cells])
    return markdown.make_table(header, table_rows)


def _is_of_tasks(rows: Sequence[Row]) -> bool:
    """Whether train steps of tasks were measured, not attentions at some lengths."""
    return "task" in rows[0]["key"]


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

    text = _format_number(number, num_digits=4)
    if unit == "ms" and len(row["seconds"]) > 1:
        quartiles = 1e3 * np.quantile(row["seconds"], (0.25, 0.75))
        lower, upper = (_format_number(x, num_digits=3) for x in quartiles)
        text = f"{_format_number(number, num_digits=3)} ({lower}–{upper})"
    reference_number = find_value(reference, unit) if reference else None
    if reference is row or not reference_number:
        return text
    factor = reference_number / number
    num_digits = 0 if factor >= 10 else 1
    return f"{text} · {factor:,.{num_digits}f}×"


def _format_number(number: float, num_digits: int) -> str:
    """Some digits of a number, and all of those before its point, as in "2,820"."""
    if number >= 10**num_digits:
        return f"{number:,.0f}"
    return f"{number:.{num_digits}g}"


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


def find_curves(
    rows: Iterable[Row], names: Names, unit: str
) -> dict[str, dict[int, float]]:
    """Returns the known values: label -> length -> value."""
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        number = find_value(row, unit)
        if number:
            values.setdefault(names.label(row), {})[row["key"]["length"]] = number
    return values


def draw_summary(rows: Sequence[Row]) -> Figure | None:
    """Draws time and memory with the gradient, of the lines of SUMMARY alone.

    In the memory of exact attention that holds its scores at once the square of the
    length is seen. PyTorch does not say what it holds, and has no line there.

    Returns:
      The figure; None if one of ours was not measured.
    """
    attentions = {row["key"]["attention"] for row in rows}
    if not set(SUMMARY) - {"torch-softmax"} <= attentions:
        return None
    shown_rows = [
        {**row, "key": {**row["key"], "attention": SUMMARY[row["key"]["attention"]]}}
        for row in rows
        if row["key"]["attention"] in SUMMARY
    ]
    styles = {SUMMARY[name]: style for name, style in attention_styles(SUMMARY).items()}
    figure = new_figure(columns=2)
    figure.set_size_inches(SUMMARY_SIZE)
    for axes, unit in zip(figure.axes, UNITS, strict=True):
        _draw_panel(axes, shown_rows, Names.of(shown_rows), PASSES[-1], unit, styles)
        what = "time" if unit == "ms" else "memory"
        axes.set(title=f"{what} with the gradient")
    return figure


def draw_curves(rows: Sequence[Row], has_time: bool = True) -> Figure:
    """Draws costs against the length: a row of panels for each pass."""
    units = _units(has_time)
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
    rows_of_pass = [row for row in rows if row["key"]["what"] == what]
    for label, curve in find_curves(rows_of_pass, names, unit).items():
        axes.plot(
            list(curve), list(curve.values()), marker=".", label=label, **styles[label]
        )
    lengths = sorted({row["key"]["length"] for row in rows})
    _finish_panel(axes, lengths, title=what, xlabel="length", ylabel=unit)


def draw_landmarks(rows: Sequence[Row], has_time: bool = True) -> Figure | None:
    """Draws the costs of Nyström attention against its number of landmarks.

    There is a row of panels for each pass, and a line for each length, with the
    convolution of V and without it.

    Returns:
      The figure; None if there is but one number of landmarks, or each has sizes of
      its own.
    """
    nystrom_rows = [row for row in rows if "num_landmarks" in row["key"]["options"]]
    counts = sorted({row["key"]["options"]["num_landmarks"] for row in nystrom_rows})
    if len(counts) < 2 or Names.of(rows).has_sizes:
        return None

    lines = list(dict.fromkeys(_name_line(row) for row in nystrom_rows))
    styles = attention_styles(lines)
    units = _units(has_time)
    figure = new_figure(len(PASSES), len(units))
    panels = [(what, unit) for what in PASSES for unit in units]
    for axes, (what, unit) in zip(figure.axes, panels, strict=True):
        for line in lines:
            curve = {}
            for row in nystrom_rows:
                number = find_value(row, unit)
                if number and row["key"]["what"] == what and _name_line(row) == line:
                    curve[row["key"]["options"]["num_landmarks"]] = number
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
    key = row["key"]
    name = re.sub(r"-\d+", "", key["attention"], count=1)
    return f"{name}, {key['length']:,} tokens"


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
