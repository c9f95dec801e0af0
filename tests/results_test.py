"""The numbers of the results' pages are those of the records.

These are the scores in tables that the report does not write, and the differences that
pages tell in words: ± is the one of the report's tables.
"""

import ast
import functools
import itertools
import re
import statistics

import pandas as pd
import pytest

from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.report_page import fill_blocks
from nystromformer.experiments.report.runs import make_frame
from nystromformer.experiments.report.tables import format_difference
from tests.commands import ROOT
from tests.page_tables import REPORTED, check_cell, is_rounded, read_page, read_table

RESULTS = ROOT / "results"
NUM_TEST_EXAMPLES = {"listops": 2_000, "text": 25_000}


# The runs of each row that a page has, by its label: their names in runs.jsonl and in
# earlier_runs.csv.
LISTOPS_RUNS = {
    "identity (no attention)": ["listops_paper/none", "identity-s1"],
    "softmax": ["listops_paper/softmax", "softmax/softmax-s1", "softmax/softmax-s2"],
    "nystrom, 64 landmarks": [
        "listops_paper/nystrom-64",
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
    "linear": ["h200_linear"],
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
    for _, run in pd.read_csv(RESULTS / folder / "earlier_runs.csv").iterrows():
        # Older lines have no score, and their accuracy is in %.
        accuracy = run["test_accuracy"]
        scores[run["run"]] = run["seed"], accuracy if accuracy > 1 else 100 * accuracy
    return scores


@functools.cache
def read_floors(folder):
    """What each fixed rule reaches on the test in %, by its name."""
    results = [record["result"] for record in read_records([RESULTS / folder])]
    floors = next(result for result in results if result)["floors"]
    return {name: 100 * accuracy for name, accuracy in floors.items()}


@functools.cache
def read_published():
    """The published scores in %, by source and attention."""
    table = pd.read_csv(RESULTS / "published.csv")
    return table[table["preset"].isna()].set_index(["source", "attention"])


def make_runs(accuracies, task):
    """Runs as the report has them, from the accuracy in % of each seed."""
    runs = pd.Series(accuracies, name="score").rename_axis("seed").reset_index()
    share = runs["score"] / 100
    variance = share * (1 - share) / NUM_TEST_EXAMPLES[task]
    return runs.assign(score_sd=100 * variance**0.5)


def read_runs_of_table(task, heading, runs_of_rows):
    """A group for each row of the table of a task's page."""
    scores = read_scores(task)
    table = read_table(f"results/{task}/README.md", heading)
    rows = [runs_of_rows[label] for label in table.index if label in runs_of_rows]
    groups = [dict(scores[name] for name in names) for names in rows]
    return [[make_runs(group, task) for group in groups]]


def read_runs_of_listops():
    return read_runs_of_table("listops", "## Scores", LISTOPS_RUNS)


def read_runs_of_text():
    return read_runs_of_table("text", "## At the paper's settings", TEXT_RUNS)


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
    text, _ = read_page(page).split(end)
    if page == "README.md":
        _, text = text.split("are tasks of the LRA, shortened")  # behind the table
    check_words(text, quick_differences)


@pytest.mark.parametrize(
    ("page", "read_runs"),
    [
        ("results/listops/README.md", read_runs_of_listops),
        ("results/pretraining/README.md", read_runs_of_pretraining),
    ],
)
def test_differences_in_words_are_those_of_older_scores(page, read_runs):
    check_words(read_page(page), list_differences(read_runs()))


def test_differences_in_words_of_the_front_page_are_on_its_pages(quick_differences):
    differences = [
        *quick_differences,
        *list_differences(read_runs_of_listops()),
        *list_differences(read_runs_of_text()),
        *list_exchanges(),
    ]
    check_words(read_page("results/README.md"), differences)


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


@pytest.mark.parametrize(
    ("page", "heading", "runs_of_tasks"),
    [
        ("listops/README.md", "## Scores", {"ListOps": LISTOPS_RUNS}),
        (
            "listops/history.md",
            "## Published choices, one by one",
            {"ListOps": LISTOPS_RUNS},
        ),
        ("text/README.md", "## At the paper's settings", {"Text": TEXT_RUNS}),
        (
            "README.md",
            "## At the paper's settings",
            {
                "ListOps": LISTOPS_RUNS,
                "Text": {"nystrom, 64 landmarks": ["h200_nystrom"]},
            },
        ),
    ],
)
def test_scores_are_those_of_records(page, heading, runs_of_tasks):
    table = read_table(f"results/{page}", heading)
    for position, column in enumerate(table.columns):
        if column in runs_of_tasks:
            task = column
        for label, cell in table.iloc[:, position].items():
            if column in SOURCES:
                check_cell(cell, list_published(task, column, label))
            elif label.startswith("floor: "):
                floor = read_floors(task.lower()).get(label.removeprefix("floor: "))
                check_cell(cell, [] if floor is None else [floor])
            else:
                names = runs_of_tasks[task].get(label, [])
                check_scores(cell, [read_scores(task.lower())[name] for name in names])


def list_published(task, column, label):
    """The published score of a row, if there is one."""
    if column not in PUBLISHED_IN.get(label, ()):
        return []
    attention = re.split(r"\W", label)[0]
    return [read_published().loc[SOURCES[column], attention][task.lower()]]


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
    for label, names in PRETRAINED.items():
        cells = table.loc[label]
        for pair, name in zip((cells[:2], cells[2:]), names, strict=True):
            numbers = [[], []] if name is None else [[x] for x in scores.loc[name]]
            for cell, number in zip(pair, numbers, strict=True):
                check_cell(cell, number)
    # The floor of the runs of c91aa37 is the only one on record.
    floors = ast.literal_eval(runs.loc["corpus/noconv", "floors"])
    floor_cells = table.loc["floor: most frequent token"]
    check_cell(floor_cells.iloc[0], [100 * floors["frequency of each token"]])
    assert len(table) == len(PRETRAINED) + 1


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
    table = read_table("results/quick_tasks/README.md", "## Commands", number=1)
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


# How many tables each page has that the report does not write. A test here, or in the
# file that is named, computes them.
NUM_TABLES = {
    "README.md": 3,  # the first and the last are words
    "approximation/README.md": 8,  # results_approximation_test.py
    "approximation/fine_tuning/README.md": 1,  # results_approximation_test.py
    "listops/README.md": 2,
    "listops/history.md": 2,  # the second is words
    "pretraining/README.md": 2,
    "quick_tasks/README.md": 2,  # the first is words
    "speed/README.md": 8,  # results_speed_test.py
    "text/README.md": 1,
    "text/history.md": 1,  # words
}
# It stands on pages that other scripts write.
WRITTEN = "\n- Command: `python scripts/"


def test_no_other_table_is_written_by_hand():
    num_tables = {}
    for page in RESULTS.rglob("*.md"):
        text = read_page(page)
        tables = re.findall(r"^\|[ :|-]+\|$", text, re.MULTILINE)
        if tables and WRITTEN not in text:
            num_tables[str(page.relative_to(RESULTS))] = len(tables)
    assert num_tables == NUM_TABLES
