"""The benchmark's page: attentions down, lengths or tasks across."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.markdown import DASH
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.speed.attentions import WHOLE_SOFTMAX
from nystromformer.experiments.speed.figures import (
    draw_curves,
    draw_landmarks,
    draw_summary,
)
from nystromformer.experiments.speed.rows import (
    MEMORY,
    TIME,
    Names,
    Row,
    find_curves,
    list_units,
)
from nystromformer.experiments.speed.timing import MIN_SECONDS, Program, measure
from nystromformer.run_files import write_text

FILE = "benchmark.json"
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
    rows: list[Row] = []
    has_time = rounds > 0
    for programs in page.groups:
        # The folder is made when the first group has come. Wrong settings are an error
        # before that, and leave no empty folder behind.
        out.mkdir(parents=True, exist_ok=True)
        new_rows = measure(programs, rounds)
        print("\n".join(make_tables(new_rows, has_time)), flush=True)
        rows.extend(new_rows)
        # Before the figures: a folder that has this file may be written again.
        record = {**made_by, "rows": [row.to_json() for row in rows]}
        write_text(out / FILE, json.dumps(record, indent=1))
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
        if row.path:
            paths = columns.setdefault(names.label(row), {})
            paths.setdefault(row.path, []).append(names.column(row))
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
    names = {row.key.attention for row in rows}
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
    sources = dict.fromkeys(row.key.source for row in rows)
    return [f"- Published times: {source}" for source in sources if source]


def make_tables(rows: Sequence[Row], has_time: bool = True) -> list[str]:
    """Returns the lines of a table for each pass and each unit."""
    names = Names.of(rows)
    lines = []
    for what in dict.fromkeys(row.key.what for row in rows):
        for unit in list_units(has_time):
            # Others publish times alone.
            shown_rows = [
                row
                for row in rows
                if row.key.what == what and (unit == TIME or row.key.source is None)
            ]
            lines.extend([f"## {what.capitalize()}: {unit}", ""])
            lines.extend([*_value_table(shown_rows, names, unit, has_time), ""])
    return lines


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
    attentions = {row.key.attention for row in rows}
    is_of_all_scores = unit == MEMORY and WHOLE_SOFTMAX in attentions
    reference = WHOLE_SOFTMAX if is_of_all_scores else "softmax"
    reference_of_column = {
        (row.key.dtype, names.column(row)): row
        for row in rows
        if row.key.attention.split(",")[0] == reference
    }

    table_rows = []
    for label in dict.fromkeys(names.label(row) for row in rows):
        cells = []
        for column in columns:
            row = row_of_cell.get((label, column))
            reference_row = None
            if row is not None:
                reference_row = reference_of_column.get((row.key.dtype, column))
            cells.append(_format_cell(row, reference_row, unit=unit, has_time=has_time))
        if has_exponents:
            cells.append(fit_exponent(curve_of_label.get(label, {})))
        table_rows.append([label, *cells])
    return markdown.make_table(header, table_rows)


def _is_of_tasks(rows: Sequence[Row]) -> bool:
    """Whether train steps of tasks were measured, not attentions at some lengths."""
    return rows[0].key.task is not None


def _format_cell(
    row: Row | None, reference: Row | None, *, unit: str, has_time: bool
) -> str:
    """As in "9.92 (9.8–10.1) · 17×", which is the reference over the row."""
    if row is None:
        return DASH
    number = row.value(unit)
    if number is None:
        has_failed = has_time and not row.seconds
        return "out of memory" if has_failed else DASH

    text = format_number(number, num_digits=4)
    if unit == TIME and len(row.seconds) > 1:
        quartiles = 1e3 * np.quantile(row.seconds, (0.25, 0.75))
        lower, upper = (format_number(x, num_digits=3) for x in quartiles)
        text = f"{format_number(number, num_digits=3)} ({lower}–{upper})"
    reference_number = reference.value(unit) if reference else None
    if reference is row or not reference_number:
        return text
    factor = reference_number / number
    num_digits = 0 if factor >= 10 else 1
    return f"{text} · {factor:,.{num_digits}f}×"


def format_number(number: float, num_digits: int) -> str:
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
