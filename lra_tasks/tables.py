"""Tables of labelled texts: CSV files, TSV files without quoting; names in a line."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra_tasks.errors import DataError

# So many different labels are no mistake, however few lines there are.
FEW_CLASSES = 20
# The texts of each line, and the label of each.
Table = tuple[list[tuple[str, ...]], list[int]]


def read_table(
    path: Path,
    texts: Sequence[str],
    label: str,
    classes: Sequence[str],
    advice: str = "",
) -> Table:
    """Reads columns of a CSV file, or of a TSV file without quoting.

    Lines that lack a column, as in QQP, or (TSV) have too many are left out, as stderr
    says. White space around a text is its own.

    Args:
      path: the file; its first line names the columns.
      texts: the columns of the texts to read.
      label: the column of the label.
      classes: the labels that there may be.
      advice: what a user may do who has other columns, for the error.

    Returns:
      The texts of each line, and its label as an index of `classes`.

    Raises:
      DataError: if a column is missing, a line of a CSV has too many columns or wrong
        quotes, a label is none of the classes, or the file is not UTF-8.
    """
    rows, num_lines = _read_rows(path, [*texts, label], advice)
    num_left_out = num_lines - len(rows)
    if num_left_out:
        print(
            f"{path}: {num_left_out:,} of {num_lines:,} lines lack a column or have "
            "too many: left out",
            file=sys.stderr,
        )
    labels = [row[label].strip() for row in rows]
    unknown = set(labels) - set(classes)
    if unknown:
        first = ",".join(sorted(set(labels))[:20])
        raise DataError(
            f"{path}: its labels are {first}, not {','.join(classes)}: correct the "
            "file, or name its classes"
        )
    return (
        [tuple(row[text] for text in texts) for row in rows],
        [classes.index(name) for name in labels],
    )


def find_classes(
    path: Path, texts: Sequence[str], label: str, advice: str = ""
) -> list[str]:
    """Finds the labels of a file, numbers by their size and other words sorted.

    Args:
      path: the file, as `read_table` takes it.
      texts: the columns of the texts; a line without them is left out.
      label: the column of the label.
      advice: as for `read_table`.

    Raises:
      DataError: as in `read_table`, for a line without a label, and where most labels
        occur once, as they do in a column of something else.
    """
    rows, _ = _read_rows(path, [*texts, label], advice)
    labels = [row[label].strip() for row in rows]
    num_empty = labels.count("")
    if num_empty:
        raise DataError(
            f"{path} has {num_empty:,} lines without a label: fill them in, or remove "
            "these lines"
        )
    classes = sorted(set(labels))
    if len(classes) > max(FEW_CLASSES, len(labels) // 2):
        raise DataError(
            f"{path}: the column {label} has {len(classes):,} different labels in "
            f"{len(labels):,} lines: name a column of classes"
        )
    if all(name.isdecimal() for name in classes):
        classes.sort(key=int)
    return classes


def split_csv(content: str, name: str) -> Iterator[list[str]]:
    """Splits a CSV file into lines, and a line into fields; blank lines are left out.

    A line ends at a line feed, or in a file without any at a carriage return, as old
    programs for the Macintosh wrote them. Another carriage return belongs to a text.

    Args:
      content: what the file holds; its first line names the columns.
      name: the file's name in errors.

    Yields:
      The fields of each line.

    Raises:
      DataError: if a line has too many columns or wrong quotes.
    """
    content = _end_lines(content)
    csv.field_size_limit(sys.maxsize)  # A text may be long.
    reader = csv.reader(io.StringIO(content), strict=True)
    header: list[str] = []
    first_line = 1
    try:
        for fields in reader:
            header = header or fields
            if has_too_many(fields, header):
                raise DataError(
                    f"{name}, line {reader.line_num} has too many columns: quote a "
                    "text with commas"
                )
            if fields:
                yield fields
            first_line = reader.line_num + 1
    except csv.Error as error:
        # The wrong quote may be in any of the lines that became one.
        place = f"line {first_line}"
        if reader.line_num > first_line:
            place = f"lines {first_line} to {reader.line_num}"
        reason = str(error).partition(" - ")[0]
        raise DataError(
            f"{name}, {place}: {reason}: quote a text with quotes or line breaks, and "
            'write each " in it twice'
        ) from None


def split_tsv(content: str) -> Iterator[list[str]]:
    """Splits a TSV file into lines, as `split_csv`, and a line at its tabs."""
    for line in _end_lines(content).split("\n"):
        fields = line.removesuffix("\r").split("\t")
        if fields != [""]:
            yield fields


def has_too_many(fields: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a line has more fields than columns; empty ones are only separators."""
    return any(fields[len(header) :])


def _end_lines(content: str) -> str:
    return content if "\n" in content else content.replace("\r", "\n")


def join_names(names: Sequence[str]) -> str:
    """Writes names of classes as a line of a CSV, in which a name may have commas.

    Raises:
      DataError: for a name with a line break, which the stored data could not keep.
    """
    for name in names:
        if "\n" in name or "\r" in name:
            raise DataError(f"the class {name!r} has a line break: rename it")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def split_names(line: str) -> list[str]:
    """Reads what `join_names` writes, each name once; blanks around it are left out."""
    [names] = csv.reader([line], skipinitialspace=True)
    return list(dict.fromkeys(name.strip() for name in names))


def _read_rows(
    path: Path, columns: Sequence[str], advice: str
) -> tuple[list[dict[str, str]], int]:
    """Reads the lines that have the columns.

    Returns the fields of each, by the names of all columns, and the number of all
    lines.
    """
    lines = _read_lines(path)
    header = next(lines, [])
    missing = set(columns) - set(header)
    if missing:
        comma, separators = (",", "commas") if path.suffix == ".csv" else ("\t", "tabs")
        raise DataError(
            f"{path} has no column {', '.join(sorted(missing))}: its first line must "
            f"name the columns, divided by {separators}, got "
            f"{comma.join(header)[:80]!r}" + (advice and f"; {advice}")
        )

    rows = []
    num_lines = 0
    for fields in lines:
        num_lines += 1
        row = dict(zip(header, fields, strict=False))
        if not has_too_many(fields, header) and row.keys() >= set(columns):
            rows.append(row)
    return rows, num_lines


def _read_lines(path: Path) -> Iterator[list[str]]:
    """The fields of each line of a CSV or TSV file that is not blank."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            content = file.read()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason})") from None
    if path.suffix == ".csv":
        return split_csv(content, str(path))
    return split_tsv(content)
