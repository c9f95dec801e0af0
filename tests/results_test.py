"""The differences that pages tell in words: ± is the one of the report's tables."""

import itertools
import re

import pandas as pd
import pytest

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from nystromformer.experiments.report.tables import format_difference
from tests.commands import ROOT
from tests.page_tables import REPORTED, is_rounded, read_page

RESULTS = ROOT / "results"
NUM_TEST_EXAMPLES = {"listops": 2_000, "text": 25_000}


def make_runs(accuracies, task):
    """Runs as the report has them, from the accuracy in % of each seed."""
    runs = pd.Series(accuracies, name="score").rename_axis("seed").reset_index()
    share = runs["score"] / 100
    variance = share * (1 - share) / NUM_TEST_EXAMPLES[task]
    return runs.assign(score_sd=100 * variance**0.5)


def read_runs_of_listops():
    """A group for each row of the page's table: most of these runs have no record."""
    page = (RESULTS / "listops/README.md").read_text()
    cells = re.findall(r"^\| [^|]+\| ((?:[\d.]+ \(\d\)[, ]*)+)\|", page, re.MULTILINE)
    rows = [re.findall(r"([\d.]+) \((\d)\)", cell) for cell in cells]
    groups = [{int(seed): float(score) for score, seed in row} for row in rows]
    return [[make_runs(group, "listops") for group in groups]]


def read_runs_of_pretraining():
    """The runs on a task's own inputs, by task, from the scores that were kept."""
    table = pd.read_csv(RESULTS / "pretraining/earlier_runs.csv")
    table = table[table["run"].str.startswith("self_pretraining/")]
    table = table[table["test_accuracy"].notna()]
    table["name"] = table["run"].str.replace(r"-seed\d$", "", regex=True)
    columns = []
    for task, runs in table.groupby("task"):
        groups = [
            make_runs(group.set_index("seed")["test_accuracy"], task)
            for _, group in runs.groupby("name")
        ]
        columns.append(groups)
    return columns


def read_runs_of_records(folder):
    """The recorded runs, by the column of the report's tables and by label."""
    frame = make_frame(read_records([RESULTS / folder]))
    finished = frame[frame["finished"]]
    return [
        [group for _, group in runs.groupby("label")]
        for _, runs in finished.groupby("column")
    ]


def list_differences(columns):
    """Each difference of two groups without its sign, and its ±."""
    differences = []
    for groups in columns:
        for pair in itertools.combinations(groups, 2):
            match = re.match(r"[+-]([\d.]+) ± ([\d.]+)", format_difference(*pair))
            if match:
                differences.append((float(match[1]), float(match[2])))
    return differences


def list_exchanges():
    """Each difference that an exchange of attentions makes, as `list_differences`."""
    differences = list_differences(read_runs_of_records("approximation/fine_tuning"))
    for path in sorted((RESULTS / "approximation").glob("*/swaps.csv")):
        changes = 100 * pd.read_csv(path)[["difference", "noise"]]
        differences += changes.abs().itertuples(index=False, name=None)
    return differences


@pytest.fixture(scope="module")
def quick_differences():
    folders = ("quick_tasks", "listops_short", "equal_footing")
    columns = [column for name in folders for column in read_runs_of_records(name)]
    return list_differences(columns)


def check_words(text, differences):
    """Every difference below ten points in the text is one of these, rounded.

    What is above may be a score, as "51.80 ± 0.97" is.
    """
    told = re.findall(r"(?<![\d.])(\d\.\d+) ± (\d+\.\d+)", text)
    assert told
    for mean, bound in told:
        assert any(
            is_rounded(mean, difference) and is_rounded(bound, error)
            for difference, error in differences
        ), f"{mean} ± {bound}"


@pytest.mark.parametrize(
    ("page", "end"),
    [
        ("README.md", "\n## Train"),
        ("docs/which_attention.md", "\n## By device"),
        ("results/quick_tasks/README.md", "\n## Older runs"),
        ("results/listops_short/README.md", "\n## Trained again"),
        ("results/equal_footing/README.md", "\nModels have"),
    ],
)
def test_differences_in_words_are_those_of_quick_records(page, end, quick_differences):
    text, _ = (ROOT / page).read_text().split(end)
    if page == "README.md":
        _, text = text.split("are tasks of the LRA, shortened")  # behind the table
    check_words(REPORTED.sub("", text), quick_differences)


@pytest.mark.parametrize(
    ("page", "read_runs"),
    [
        ("results/listops/README.md", read_runs_of_listops),
        ("results/pretraining/README.md", read_runs_of_pretraining),
    ],
)
def test_differences_in_words_are_those_of_older_scores(page, read_runs):
    check_words(read_page(page), list_differences(read_runs()))


@pytest.mark.parametrize(
    ("page", "start"),
    [
        ("docs/which_attention.md", "\n## Which layers may be exchanged"),
        ("results/approximation/README.md", ""),
        ("results/approximation/fine_tuning/README.md", ""),
    ],
)
def test_differences_in_words_are_those_of_exchanges(page, start):
    text = (ROOT / page).read_text()
    check_words(text[text.index(start) :], list_exchanges())
