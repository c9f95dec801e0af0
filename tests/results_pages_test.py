"""What the report writes on a page is as on record, and no table is uncounted."""

import re

import pytest

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.report_page import fill_blocks
from tests.page_tables import REPORTED, read_page
from tests.results_records import RESULTS

REPORTED_PAGES = sorted(
    page for page in RESULTS.rglob("README.md") if REPORTED.search(page.read_text())
)


@pytest.mark.parametrize(
    "page", REPORTED_PAGES, ids=lambda page: str(page.parent.relative_to(RESULTS))
)
def test_reported_blocks_are_those_of_records(page):
    text = page.read_text()
    filled, _ = fill_blocks(text, read_records([page.parent]))
    assert filled == text


# How many tables each page has that neither the report nor another script writes. A
# test in results_scores_test.py, results_approximation_test.py or results_speed_test.py
# computes them, but for those that are named.
NUM_TABLES = {
    "README.md": 3,  # the claims and the questions are not computed
    "approximation/README.md": 8,
    "approximation/fine_tuning/README.md": 1,
    "listops/README.md": 2,
    "listops/history.md": 2,  # the commits are not computed
    "pretraining/README.md": 2,
    "quick_tasks/README.md": 2,  # the data are not computed
    "speed/README.md": 8,
    "text/README.md": 1,
    "text/history.md": 1,  # the commits are not computed
}
# A line of the pages that other scripts write.
COMMAND_LINE = "\n- Command: `python scripts/"


def test_no_other_table_is_written_by_hand():
    num_tables = {}
    for page in RESULTS.rglob("*.md"):
        text = read_page(page)
        tables = re.findall(r"^\|[ :|-]+\|$", text, re.MULTILINE)
        if tables and COMMAND_LINE not in text:
            num_tables[str(page.relative_to(RESULTS))] = len(tables)
    assert num_tables == NUM_TABLES
