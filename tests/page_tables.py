"""Tables of pages, and whether they print numbers as they are on record."""

import re
from decimal import Decimal

import pandas as pd

from tests.commands import ROOT

REPORTED = re.compile(r"<!-- report: .*?<!-- end of report -->", re.DOTALL)
NUMBER = re.compile(r"[+−-]?\d[\d,]*(?:\.\d+)?(?:e-\d+)?")


def read_page(page):
    """The text without the tables that the report writes."""
    return REPORTED.sub("", (ROOT / page).read_text())


def read_table(page, heading, index=0):
    """A table under a heading: its cells as they are printed, by row and column.

    Where several are under the heading, index says which.
    """
    _, text = f"\n{read_page(page)}".split(f"\n{heading}\n")
    text, *_ = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    columns, _, *rows = [split_row(line) for line in tables[index].splitlines()]
    return pd.DataFrame(rows, columns=columns).set_index(columns[0])


def split_row(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def check_cell(cell, numbers):
    """A cell prints these numbers in this order, and no other."""
    printed = NUMBER.findall(cell)
    message = f"{cell!r} on the page, {numbers} on record"
    assert len(printed) == len(numbers), message
    assert all(map(is_rounded, printed, numbers)), message


def is_rounded(text, number):
    """Whether a printed number is this one; a 5 at the end may go either way.

    It may be "14,736", "−0.50" or "6e-6".
    """
    printed = Decimal(text.replace(",", "").replace("−", "-"))
    unit = 10.0 ** int(printed.as_tuple().exponent)
    return abs(float(printed) - number) <= 0.5 * unit * (1 + 1e-9)
