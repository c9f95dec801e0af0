"""What the other tests of pages rely on."""

import pytest

from tests import page_tables
from tests.page_tables import check_cell, read_table

PAGE = """# Title

| a | b |
| --- | ---: |
| first | 1 |

## Times

<!-- report: scores -->
| x |
| --- |
| 9 |
<!-- end of report -->

| a | b |
| --- | ---: |
| first | 2 |

Words.

| a | b |
| --- | ---: |
| second | 3 |

## Last
"""


@pytest.fixture(autouse=True)
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(page_tables, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(PAGE)


@pytest.mark.parametrize(
    ("heading", "index", "cells"),
    [
        ("# Title", 0, {"first": "1"}),
        ("## Times", 0, {"first": "2"}),
        ("## Times", 1, {"second": "3"}),
    ],
)
def test_a_table_is_found_below_its_heading(heading, index, cells):
    assert read_table("page.md", heading, index)["b"].to_dict() == cells


@pytest.mark.parametrize(
    ("heading", "index"), [("## Last", 0), ("## Times", 2), ("## No such heading", 0)]
)
def test_a_table_that_is_not_there_is_an_error(heading, index):
    with pytest.raises((IndexError, ValueError)):
        read_table("page.md", heading, index)


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        ("14,736", [14_736.4]),
        ("−0.50 ± 3.20", [-0.496, 3.204]),
        ("+0.125", [0.125]),
        ("6e-6", [6.4e-6]),
        ("2.16 (1.65–2.41)", [2.16, 1.65, 2.41]),
        ("0.12, 0.13", [0.125, 0.125]),
        ("—", []),
        ("", []),
    ],
)
def test_a_cell_prints_rounded_numbers(cell, numbers):
    check_cell(cell, numbers)


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        ("14,737", [14_736.4]),
        ("0.50", [-0.5]),
        ("0.13", [0.1249]),
        ("7e-6", [6.4e-6]),
        ("1.65, 2.16", [2.16, 1.65]),
        ("1.65", [1.65, 2.16]),
        ("1.65", []),
        ("", [1.65]),
    ],
)
def test_a_cell_with_other_numbers_fails(cell, numbers):
    with pytest.raises(AssertionError):
        check_cell(cell, numbers)
