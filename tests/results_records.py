"""Reads the records of results/, and says which runs stand in which row of a page."""

import functools
import re

import pandas as pd

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from tests.commands import ROOT

RESULTS = ROOT / "results"
NUM_TEST_EXAMPLES = {"listops": 2_000, "text": 25_000, "image": 10_000}

# The runs of each row that a page has, by its label: their names in runs.jsonl and in
# earlier_runs.csv.
LISTOPS_RUNS = {
    "identity (no attention)": [
        "listops_paper/none",
        "identity-s1",
        "paper/identity-seed2",
    ],
    "softmax": ["listops_paper/softmax", "softmax/softmax-s1", "softmax/softmax-s2"],
    "nystrom, 64 landmarks": [
        "paper/nystrom-seed0",
        "paper_more/nystrom-64-seed1",
        "nystrom-s2",
    ],
    "nystrom, 64 landmarks, without its convolution of V": [
        "without_convolution/nystrom-noconv"
    ],
    "nystrom, 128 landmarks": ["listops_paper/nystrom-128"],
    "nystrom, 32 landmarks": ["listops_paper/nystrom-32"],
    "nystrom, 16 landmarks": ["paper_more/nystrom-16"],
    "linformer, 256 rows": [
        "listops_paper/linformer",
        "linformer-s1",
        "listops/linformer-s2",
    ],
    "linear": ["paper/linear-seed0", "paper/linear-seed1", "paper/linear-seed2"],
    "performer, 256 features": ["listops_paper/performer", "seed1/performer-s1"],
    "performer, preset `as_published`, features drawn at each forward pass": [
        "redrawn_features"
    ],
    "reformer, 2 hashes": ["listops_paper/reformer", "seed1/reformer-s1"],
    "performer, the published arithmetic": ["paper_more/performer-published"],
    "performer, mean over the padded length": ["performer/performer-padded"],
    "performer, β₁ cycled": ["performer/performer-b1"],
    "performer, preset `as_published` of 988db12, which drew its features once": [
        "published/performer_as_published"
    ],
    "reformer, two chunks instead of a bucket": ["listops/reformer-chunk"],
    "reformer, mean over the padded length": ["listops/reformer-padded-mean"],
    "reformer, β₁ cycled": ["published/reformer_cycle_b1"],
    "reformer, preset `as_published` of 209567c, which kept its hashes": [
        "paper_more/reformer-published"
    ],
}
TEXT_RUNS = {
    "nystrom, 64 landmarks, all 20,000 steps": ["h200_nystrom"],
    "identity (no attention)": ["first_6000_steps/identity"],
    "softmax": ["first_6000_steps/softmax"],
    "nystrom, 64 landmarks": ["first_6000_steps/nystrom"],
    "nystrom, 64 landmarks, without its convolution of V": [
        "first_6000_steps/nystrom-noconv"
    ],
    "softmax, preset `as_published` (1,000 bytes)": [
        "first_6000_steps/softmax-published"
    ],
    "nystrom, preset `as_published` (1,000 bytes)": [
        "first_6000_steps/nystrom-published"
    ],
    "linformer, 256 rows": ["first_6000_steps/linformer"],
    "linear": ["first_6000_steps/linear"],
    "performer, 256 features": ["first_6000_steps/performer"],
    "reformer, 2 hashes": ["first_6000_steps/reformer"],
}


@functools.cache
def read_scores(folder):
    """The seed and the test accuracy in % of each run, by its name."""
    scores = {}
    for record in read_records([RESULTS / folder]):
        if record["result"]:
            accuracy = 100 * record["result"]["test_accuracy"]
        elif "evaluation" in record:  # of a stopped run, as evaluate.py printed it
            accuracy = float(re.findall(r"([\d.]+)%", record["evaluation"])[0])
        else:
            continue
        scores[record["run"]] = record["config"]["train"]["seed"], accuracy
    earlier_runs = RESULTS / folder / "earlier_runs.csv"
    if earlier_runs.exists():
        for _, run in pd.read_csv(earlier_runs).iterrows():
            accuracy = run["test_accuracy"]
            # Older lines have it in %.
            accuracy = accuracy if accuracy > 1 else 100 * accuracy
            scores[run["run"]] = run["seed"], accuracy
    return scores


@functools.cache
def read_floors(folder):
    """The test accuracy in % of each fixed rule, by its name."""
    results = [record["result"] for record in read_records([RESULTS / folder])]
    floors = next(result for result in results if result)["floors"]
    return {name: 100 * accuracy for name, accuracy in floors.items()}


@functools.cache
def read_published():
    """The published scores in %, by source and attention."""
    table = pd.read_csv(RESULTS / "published.csv")
    return table[table["preset"].isna()].set_index(["source", "attention"])


def make_runs(accuracies, task):
    """Runs as a table of the report has them, from the accuracy in % of each seed."""
    runs = pd.Series(accuracies, name="score").rename_axis("seed").reset_index()
    share = runs["score"] / 100
    variance = share * (1 - share) / NUM_TEST_EXAMPLES[task]
    return runs.assign(score_sd=100 * variance**0.5)


def read_runs_of_rows(task, rows):
    """The runs of each row of a table, from the names of its runs."""
    scores = read_scores(task)
    groups = [dict(scores[name] for name in names) for names in rows]
    return [[make_runs(group, task) for group in groups]]


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


def read_runs_of_records(folder, prefixes=""):
    """The runs of a folder by the column of the report's tables and by label.

    They are finished, and their names begin with the prefix, or with one of a tuple.
    """
    records = [
        record
        for record in read_records([RESULTS / folder])
        if record["run"].startswith(prefixes)
    ]
    frame = make_frame(records)
    finished = frame[frame["finished"]]
    return [
        [group for _, group in runs.groupby("label")]
        for _, runs in finished.groupby("column")
    ]
