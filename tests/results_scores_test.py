"""Compares the tables of scores that the report does not write with the records."""

import ast
import re
import statistics

import pandas as pd
import pytest

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.tables import format_difference
from tests.page_tables import check_cell, read_table
from tests.results_records import (
    LISTOPS_RUNS,
    RESULTS,
    TEXT_RUNS,
    make_runs,
    read_floors,
    read_published,
    read_scores,
)

# The columns in which a row has a published score.
PUBLISHED_IN = {
    "softmax": ("published", "Skyformer", "xformers"),
    "nystrom, 64 landmarks": ("published", "xformers"),
    "nystrom, 64 landmarks, all 20,000 steps": ("published", "xformers"),
    "nystrom, 64 landmarks, without its convolution of V": ("Skyformer",),
    "linformer, 256 rows": ("published", "Skyformer", "xformers"),
    "performer, 256 features": ("published", "Skyformer", "xformers"),
    "reformer, 2 hashes": ("published", "Skyformer"),
    "softmax, preset `as_published` (1,000 bytes)": ("published",),
    "nystrom, preset `as_published` (1,000 bytes)": ("published",),
    "performer, preset `as_published`, features drawn at each forward pass": (
        "published",
    ),
    "reformer, preset `as_published` of 209567c, which kept its hashes": ("published",),
}
SOURCES = {"published": 1, "Skyformer": 2, "xformers": 3}  # as in published.csv


def check_scores(cell, runs):
    """A cell has the score of each run, seeds in brackets, or mean ± deviation."""
    scores = [score for _, score in runs]
    if "±" in cell:
        numbers = [statistics.mean(scores), statistics.stdev(scores)]
    elif "(" in cell:
        numbers = [number for seed, score in runs for number in (score, seed)]
    else:
        numbers = scores
    check_cell(cell, numbers)


def list_published(task, column, label):
    """The published score of a row, if there is one."""
    if column not in PUBLISHED_IN.get(label, ()):
        return []
    attention = re.split(r"\W", label)[0]
    return [read_published().loc[SOURCES[column], attention][task]]


def list_floor(task, label):
    """The accuracy of a row's fixed rule, if the task has this rule."""
    floors = read_floors(task)
    rule = label.removeprefix("floor: ")
    return [floors[rule]] if rule in floors else []


# A page, the heading of its table, the task of each column, and the runs of each row.
SCORES = [
    ("listops/README.md", "## Scores", ["listops"] * 4, {"listops": LISTOPS_RUNS}),
    (
        "listops/history.md",
        "## Published choices, one by one",
        ["listops"] * 2,
        {"listops": LISTOPS_RUNS},
    ),
    ("text/README.md", "## At the paper's settings", ["text"] * 4, {"text": TEXT_RUNS}),
    (
        "README.md",
        "## At the paper's settings",
        ["listops", "listops", "text", "text"],
        {"listops": LISTOPS_RUNS, "text": {"nystrom, 64 landmarks": ["h200_nystrom"]}},
    ),
]


@pytest.mark.parametrize(("page", "heading", "tasks", "runs_of_tasks"), SCORES)
def test_scores_are_those_of_records(page, heading, tasks, runs_of_tasks):
    table = read_table(f"results/{page}", heading)
    for index, (task, column) in enumerate(zip(tasks, table.columns, strict=True)):
        for label, cell in table.iloc[:, index].items():
            if column in SOURCES:
                check_cell(cell, list_published(task, column, label))
            elif label.startswith("floor: "):
                check_cell(cell, list_floor(task, label))
            else:
                names = runs_of_tasks[task].get(label, [])
                check_scores(cell, [read_scores(task)[name] for name in names])


def test_margins_of_table_3_follow_from_scores_of_the_rivals():
    page = "results/listops/README.md"
    table = read_table(page, "## The margins of Table 3")
    published = read_published()
    runs = read_scores("listops")
    performer, reformer = (
        [runs[name][1] for name in LISTOPS_RUNS[label]]
        for label in ("performer, 256 features", "reformer, 2 hashes")
    )
    ours = "ours (Performer: mean of two seeds; Reformer: the better one)"
    scores = {
        ("published", "Performer"): published["listops"][1, "performer"],
        ("published", "Reformer"): published["listops"][1, "reformer"],
        (ours, "Performer"): statistics.mean(performer),
        (ours, "Reformer"): max(reformer),
        ("ours, Reformer's other seed", "Reformer"): min(reformer),
        ("Skyformer's", "Performer"): published["listops"][2, "performer"],
        ("Skyformer's", "Reformer"): published["listops"][2, "reformer"],
    }
    for (row, rival), score in scores.items():
        paper = published.loc[1, rival.lower()]
        average = paper["average"] + (score - paper["listops"]) / 5  # of five tasks
        margin = published["average"][1, "nystrom"] - average
        check_cell(table.loc[row, rival], [score])
        check_cell(table.loc[row, f"margin over {rival}"], [margin])
    assert (table != "").sum(axis=None) == 2 * len(scores)


# The runs of 2,000 and of 6,000 steps.
PRETRAINED = {
    "nystrom, 16 landmarks": ["corpus/nystrom", "corpus/nystrom-6000"],
    "nystrom, without its convolution of V": ["corpus/noconv", None],
    "softmax": ["corpus/softmax", "corpus/softmax-6000"],
    "linear": ["corpus/linear", "corpus/linear-6000"],
    "linformer, 16 rows": ["corpus/linformer", "corpus/linformer-6000"],
    "identity": ["corpus/none", None],
}


def test_pretrained_scores_are_those_of_records():
    page = "results/pretraining/README.md"
    table = read_table(page, "## Masked tokens and sentence order")
    runs = pd.read_csv(RESULTS / "pretraining/earlier_runs.csv")
    # Softmax was trained again under its old name.
    runs = runs.drop_duplicates("run").set_index("run")
    scores = runs[["test_mlm_accuracy", "test_sop_accuracy"]]
    scores = scores.where(scores > 1, 100 * scores)  # the last lines have shares
    floors = ast.literal_eval(runs.loc["corpus/noconv", "floors"])
    # The floor of these runs is the only one on record.
    floor = 100 * floors["frequency of each token"]
    expected = {"floor: most frequent token": [[floor], [], [], []]}
    for label, names in PRETRAINED.items():
        expected[label] = []
        for name in names:
            pair = [[], []] if name is None else [[score] for score in scores.loc[name]]
            expected[label] += pair
    assert set(table.index) == set(expected)
    for label, cells in table.iterrows():
        for cell, numbers in zip(cells, expected[label], strict=True):
            check_cell(cell, numbers)


def test_scores_after_self_pretraining_are_those_of_records():
    page = "results/pretraining/README.md"
    table = read_table(page, "## On a task's own inputs")
    runs = pd.read_csv(RESULTS / "pretraining/earlier_runs.csv")
    scores = runs.set_index("run")["test_accuracy"]
    columns = {
        "scratch": "finetune",
        "scratch, both budgets": "total",
        "pre-trained": "finetune-after_pretrain",
    }
    for label, cells in table.iterrows():
        attention = re.split(r"\W", label)[0].replace("identity", "none")
        folder = f"self_pretraining/listops-{attention}"
        groups = {
            column: {seed: scores[f"{folder}-{run}-seed{seed}"] for seed in range(3)}
            for column, run in columns.items()
        }
        for column, group in groups.items():
            check_scores(cells[column], list(group.items()))
        pretrained = make_runs(groups["pre-trained"], "listops")
        for column, other in {
            "pre-trained − scratch": groups["scratch"],
            "− both budgets": groups["scratch, both budgets"],
        }.items():
            text = format_difference(pretrained, make_runs(other, "listops"))
            difference, _ = text.split(" (")
            assert cells[column].replace("−", "-") == difference


# The options that say how large an attention is.
SIZES = {
    "nystrom, landmarks": "num_landmarks",
    "performer, features": "num_features",
    "linformer, rows": "projection_dim",
    "reformer, bucket of 2 hashes": "bucket_size",
    "bigbird, block": "block_size",
    "longformer, window": "window",
}


def test_sizes_of_quick_tasks_are_those_of_records():
    table = read_table("results/quick_tasks/README.md", "## Commands", index=1)
    records = read_records([RESULTS / "quick_tasks"])
    options = {
        (record["config"]["attention"]["name"], record["config"]["task"]["name"]): (
            record["config"]["attention"]
        )
        for record in records
    }
    for label, option in SIZES.items():
        attention = re.split(r"\W", label)[0]
        for task, cell in table.loc[label].items():
            check_cell(cell, [options[attention, task][option]])
    assert len(table) == len(SIZES)
