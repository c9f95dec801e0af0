"""Compares the differences that pages tell in words, as "3.0 ± 2.7", with the records.

A ± is that of the report's tables. A number is looked for among all differences of a
page's records, with or without a minus: which two rows a sentence compares is not read.
"""

import functools
import itertools
import re

import pandas as pd
import pytest

from nystromformer.experiments.report.tables import format_difference
from tests.page_tables import is_rounded, read_page, read_table
from tests.results_records import (
    LISTOPS_RUNS,
    RESULTS,
    TEXT_RUNS,
    make_runs,
    read_runs_of_pretraining,
    read_runs_of_records,
    read_runs_of_rows,
    read_scores,
)


def list_numbers(columns):
    """Each difference of two groups and its ±, and each mean ± standard deviation."""
    return [*list_differences(columns), *list_means(columns)]


def list_differences(columns):
    differences = []
    for groups in columns:
        for pair in itertools.combinations(groups, 2):
            match = re.match(r"[+-]([\d.]+) ± ([\d.]+)", format_difference(*pair))
            if match:
                differences.append((float(match[1]), float(match[2])))
    return differences


def list_means(columns):
    groups = itertools.chain.from_iterable(columns)
    return [(group["score"].mean(), group["score"].std()) for group in groups]


@functools.cache
def list_numbers_of(folder):
    return list_numbers(read_runs_of_records(folder))


def list_numbers_of_listops():
    table = read_table("results/listops/README.md", "## Scores")
    rows = [LISTOPS_RUNS[label] for label in table.index if label in LISTOPS_RUNS]
    # Reformer's two seeds are compared with each other.
    scores = [
        read_scores("listops")[name] for name in LISTOPS_RUNS["reformer, 2 hashes"]
    ]
    seeds = [make_runs({0: score}, "listops") for _, score in scores]
    return list_numbers([*read_runs_of_rows("listops", rows), seeds])


def list_numbers_of_text():
    return list_numbers(read_runs_of_rows("text", TEXT_RUNS.values()))


def list_numbers_of_image():
    rows = [["h200_nystrom"], ["h200_identity"]]
    return list_numbers(read_runs_of_rows("image", rows))


def list_numbers_of_pretraining():
    return list_numbers(read_runs_of_pretraining())


def list_numbers_of_recall():
    differences = list_differences(read_runs_of_records("recall", "one_query/"))
    return [*differences, *list_means(read_runs_of_records("recall", "plan/"))]


@functools.cache
def list_numbers_of_exchanges():
    """What each exchange of attentions changes in a trained model, and its ±."""
    numbers = list_numbers_of("approximation/fine_tuning").copy()
    for path in sorted((RESULTS / "approximation").glob("*/swaps.csv")):
        changes = 100 * pd.read_csv(path)[["difference", "noise"]]
        numbers += changes.abs().itertuples(index=False, name=None)
    return numbers


@functools.cache
def list_numbers_of_listops_short():
    """The numbers of each training, and of seeds 0 to 2 and 3 to 7 together."""
    trainings = [
        ("quick/",),
        ("seeds_3_to_7/",),
        ("without_fusions/",),
        ("quick/", "seeds_3_to_7/"),
    ]
    numbers = []
    for prefixes in trainings:
        numbers += list_numbers(read_runs_of_records("listops_short", prefixes))
    return numbers


def list_numbers_of_quick():
    return [
        *list_numbers_of("quick_tasks"),
        *list_numbers_of_listops_short(),
        *list_numbers_of("equal_footing"),
    ]


def list_all_numbers():
    return [
        *list_numbers_of_quick(),
        *list_numbers_of_listops(),
        *list_numbers_of_text(),
        *list_numbers_of_exchanges(),
    ]


# A page, the words between which its text is read, and what is on record.
TEXTS = [
    ("README.md", "are tasks of the LRA, shortened", "## Train", list_numbers_of_quick),
    ("docs/which_attention.md", "", "## By device", list_numbers_of_quick),
    (
        "docs/which_attention.md",
        "## Which layers may be exchanged",
        "",
        list_numbers_of_exchanges,
    ),
    ("results/README.md", "", "", list_all_numbers),
    ("results/approximation/README.md", "", "", list_numbers_of_exchanges),
    ("results/approximation/fine_tuning/README.md", "", "", list_numbers_of_exchanges),
    ("results/equal_footing/README.md", "", "", list_numbers_of_quick),
    ("results/image/README.md", "", "", list_numbers_of_image),
    ("results/listops/README.md", "", "", list_numbers_of_listops),
    ("results/listops_short/README.md", "", "", list_numbers_of_listops_short),
    ("results/pretraining/README.md", "", "", list_numbers_of_pretraining),
    (
        "results/quick_tasks/README.md",
        "",
        "## Older runs",
        functools.partial(list_numbers_of, "quick_tasks"),
    ),
    ("results/recall/README.md", "", "", list_numbers_of_recall),
]


@pytest.mark.parametrize(("page", "start", "end", "list_recorded"), TEXTS)
def test_differences_in_words_are_on_record(page, start, end, list_recorded):
    text = read_page(page)
    if start:
        _, text = text.split(start)
    if end:
        text, _ = text.split(end)
    told = re.findall(r"(?<![\d.])(\d+\.\d+)\s+±\s+(\d+\.\d+)", text)
    assert told
    recorded = list_recorded()
    for number, noise in told:
        assert any(
            is_rounded(number, recorded_number) and is_rounded(noise, recorded_noise)
            for recorded_number, recorded_noise in recorded
        ), f"{number} ± {noise}"
