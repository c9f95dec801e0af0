"""Tables of labelled texts: CSV files, and TSV files without quoting."""

import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from lra_tasks.errors import DataError

Table = tuple[list[tuple[str, ...]], list[int]]  # texts and labels


def read_table(
    path: Path, texts: Sequence[str], label: str, classes: Sequence[str]
) -> Table:
    """Reads columns of a CSV file, or of a TSV file without quoting.

    Lines that lack a column, as in QQP, or (TSV) have too many are left out, as stderr
    says. White space around a text is its own.

    Args:
      path: the file; its first line names the columns.
      texts, label: the columns to read.
      classes: the labels that there may be.

    Returns:
      The texts of each line, and its label as an index of `classes`.

    Raises:
      DataError: for no column, too many or wrong quotes in a CSV's line, other labels,
        or no UTF-8.
    """
    lines = _read_lines(path)
    header = lines.pop(0) if lines else []
    if missing := {*texts, label} - set(header):
        raise DataError(f"{path} has no column {', '.join(sorted(missing))}")

    rows = [
        dict(zip(header, x, strict=False)) for x in lines if not any(x[len(header) :])
    ]
    if len(rows) < len(lines) and path.suffix == ".csv":
        raise DataError(f"a line of {path} has too many columns: quote commas")
    whole = [row for row in rows if row.keys() >= {*texts, label}]
    if left_out := len(lines) - len(whole):
        print(
            f"{path}: {left_out:,} of {len(lines):,} lines lack a column or have too "
            "many: left out",
            file=sys.stderr,
        )

    labels = [row[label].strip() for row in whole]
    if set(labels) - set(classes):
        first = ",".join(sorted(set(labels))[:20])
        raise DataError(f"{path}: its labels are {first}, not {','.join(classes)}")
    columns = [tuple(row[text] for text in texts) for row in whole]
    return columns, [classes.index(x) for x in labels]


def _read_lines(path: Path) -> list[list[str]]:
    """The fields of each line of a CSV or TSV file that is not blank.

    A line ends at a line feed, or in a file without any at a carriage return, as old
    programs for the Macintosh wrote them. Another carriage return belongs to a text.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None
    if "\n" not in content:
        content = content.replace("\r", "\n")
    if path.suffix != ".csv":
        lines = (line.removesuffix("\r") for line in content.split("\n"))
        return [line.split("\t") for line in lines if line]

    csv.field_size_limit(sys.maxsize)  # a text may be long
    reader = csv.reader(io.StringIO(content), strict=True)
    try:
        return [line for line in reader if line]
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: {str(error).partition(' - ')[0]}: quote "
            'a text with quotes or line breaks, and write each " in it twice'
        ) from None
