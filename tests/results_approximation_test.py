"""Each cell of the tables of results/approximation is what the studies have on record.

The pages of the studies themselves are written by scripts/approximation.py.
"""

import functools
import re
import shlex

import pandas as pd
import pytest

from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.runs import make_frame
from tests.commands import ROOT
from tests.page_tables import check_cell, read_table

FOLDER = "results/approximation"
PAGE = f"{FOLDER}/README.md"

# The study of each model, by the rows of the first table.
MODELS = {
    "Text": "text_1024",
    "pictures": "image",
    "short ListOps": "short_listops",
    "short ListOps, a smaller training": "short_listops_800_steps",
    "masked sub-words": "masked_tokens",
    "masked sub-words, a smaller training": "masked_tokens_2000_steps",
}
# The studies in the order of the commands that train their models.
TRAININGS = (
    "text_1024",
    "image",
    "short_listops",
    "masked_tokens",
    "masked_tokens_2000_steps",
    "short_listops_800_steps",
)
METRICS = {
    "reviews": "accuracy",
    "accuracy": "accuracy",
    "masked bytes": "denoising_accuracy",
}
# How each exchange differs from one of all layers with segment means.
EXCHANGES = {
    "segment means, six iterations": {},
    "segment means, exact inverse": {"kind": "segment means, exact inverse"},
    "squares, six iterations": {"kind": "squares"},
    "random tokens, six iterations": {"kind": "random tokens"},
    "k-means, six iterations": {"kind": "k-means"},
    "all layers, segment means with six iterations": {},
    "all layers, random tokens": {"kind": "random tokens"},
    "layer 0 alone": {"group": "one layer", "layers": "0"},
    "layers 1, 2 and 3": {"group": "best layers", "layers": "1 2 3"},
    "layers 2 and 3": {"group": "best layers", "layers": "2 3"},
}
# The file of a study and the rows of it, by the columns of the tables of errors.
ERRORS = {
    "segment means, 4 iterations": ("iterations.csv", {"num_pinv_iters": 4}),
    "segment means, 6 iterations": ("iterations.csv", {"num_pinv_iters": 6}),
    "6": ("iterations.csv", {"num_pinv_iters": 6}),
    "12": ("iterations.csv", {"num_pinv_iters": 12}),
    "exact inverse": ("iterations.csv", {"pinv": "exact"}),
    "squares, 6": ("landmarks.csv", {"method": "squares"}),
    "random, 6": ("landmarks.csv", {"method": "random"}),
    "k-means, 6": ("landmarks.csv", {"method": "k-means"}),
    "double softmax": ("landmarks.csv", {"method": "double softmax"}),
}
# The method and the column of causes.csv.
CAUSES = {
    "best matrix of that rank": ("best rank", "error"),
    "best middle matrix for segment means": ("best middle matrix", "error"),
    "segment means, 6 iterations": ("nystrom", "error"),
    "segment means, exact inverse": ("exact inverse", "error"),
    "double softmax": ("no inverse", "error"),
    "random landmarks, 6 iterations": ("random landmarks", "error"),
    "standard Nyström, exact inverse": ("standard Nyström", "error"),
    "standard Nyström, 6 iterations": ("standard Nyström, iterated", "error"),
    "Performer": ("performer", "error"),
    "‖Z − A⁺‖ / ‖A⁺‖": ("nystrom", "inverse_error"),
    "‖AZA − A‖ / ‖A‖": ("nystrom", "inverse_residual"),
}


def read_int(text):
    """A whole number such as "1,000" or "8 landmarks"."""
    return int(text.split()[0].replace(",", ""))


@functools.cache
def read_record(file):
    return pd.read_csv(ROOT / FOLDER / file)


def find_rows(file, **settings):
    """The rows of a record in which these columns have these values."""
    rows = read_record(file)
    for column, value in settings.items():
        rows = rows[rows[column] == value]
    assert len(rows), (file, settings)
    return rows


def check_cells(table, compute):
    """Every number of a table is the one that its row and its column ask for."""
    for row, cells in table.iterrows():
        for column, cell in cells.items():
            check_cell(cell, compute(row, column))


@functools.cache
def read_configs():
    """The config of each model, as the page's commands have it."""
    page = (ROOT / PAGE).read_text()
    commands = re.findall(r"^    python scripts/train\.py (.*)$", page, re.MULTILINE)
    configs = {}
    for study, command in zip(TRAININGS, commands, strict=True):
        flags = dict(word.split("=", 1) for word in shlex.split(command))
        file = flags.pop("--config")
        del flags["--workdir"]
        changes = {key.removeprefix("--config."): flags[key] for key in flags}
        configs[study] = load_config(f"{ROOT}/{file}", changes)
    return configs


def test_models_are_those_of_the_commands():
    def compute(row, column):
        name = re.sub(r"\[(.*)\]\(.*\)", r"\1", row)
        config = read_configs()[MODELS[name]]
        return {
            "layers": [config.model.num_layers, config.model.model_dim],
            "inputs": [config.task.options["max_length"]],
            "steps": [config.train.num_steps],
        }[column]

    table = read_table(PAGE, "# The approximation inside trained models")
    assert len(table) == len(MODELS)
    check_cells(table, compute)


@pytest.mark.parametrize("study", TRAININGS)
def test_models_are_those_of_the_studies(study):
    config = read_configs()[study]
    layers = read_record(f"{study}/spectrum.csv")["layer"]
    assert layers.nunique() == config.model.num_layers
    # All of these trainings had their best weights at the end.
    run = f"- Run: {config.task.name} with softmax, seed {config.train.seed}, "
    step = f"best weights of step {config.train.num_steps}\n"
    assert run + step in (ROOT / FOLDER / study / "README.md").read_text()


def find_change(study, metric, exchange, landmarks):
    """The points that an exchange changes, and their ±."""
    settings = {"group": "all layers", "kind": "segment means"} | EXCHANGES[exchange]
    settings |= {"metric": metric, "num_landmarks": read_int(landmarks)}
    [change] = find_rows(f"{study}/swaps.csv", **settings).to_dict("records")
    return [100 * change["difference"], 100 * change["noise"]]


def test_exchanges_in_text_are_on_record():
    def compute(row, column):
        subject, exchange = row
        return find_change("text_1024", METRICS[subject], exchange, column)

    table = read_table(PAGE, "## What an exchange costs at 1,024 tokens")
    # Only the first row of a subject names it.
    labels = table.index.str.extract(r"(?:\*\*(.*)\*\*: )?(.*)").ffill()
    check_cells(table.set_index(pd.MultiIndex.from_frame(labels)), compute)


@pytest.mark.parametrize(
    ("study", "metric", "heading", "number"),
    [
        ("image", "accuracy", "## In a model of pictures", 0),
        (
            "masked_tokens_2000_steps",
            "mlm_accuracy",
            "## In a model of masked tokens",
            1,
        ),
    ],
)
def test_exchanges_are_on_record(study, metric, heading, number):
    compute = functools.partial(find_change, study, metric)
    check_cells(read_table(PAGE, heading, number), compute)


@pytest.mark.parametrize(
    ("study", "heading", "number"),
    [
        ("image", "## In a model of pictures", 1),
        ("short_listops", "## In a model of short ListOps", 0),
        ("masked_tokens", "## In a model of masked tokens", 0),
    ],
)
def test_errors_are_medians_of_layers(study, heading, number):
    def compute(row, column):
        file, settings = ERRORS[column]
        rows = find_rows(f"{study}/{file}", num_landmarks=read_int(row), **settings)
        return rows.groupby("layer")["error"].median().tolist()

    check_cells(read_table(PAGE, heading, number), compute)


def test_causes_are_medians_of_heads():
    def compute(row, column):
        method, name = CAUSES[row]
        rows = find_rows(
            "short_listops_800_steps/causes.csv",
            method=method,
            num_landmarks=read_int(column),
        )
        return rows.groupby(["layer", "head"])[name].median().tolist()

    check_cells(read_table(PAGE, "## The error by its causes"), compute)


def test_fine_tuned_scores_are_on_record():
    runs = make_frame(read_records([ROOT / FOLDER / "fine_tuning"]))
    scores = runs.set_index(["metric", "attention", "num_steps"])["score"]

    def compute(row, column):
        score, attention = row.split(", ")
        # A step without effect measures the model as it was exchanged.
        steps = read_int(column) or 1
        return [scores[METRICS[score], attention, steps]]

    page = f"{FOLDER}/fine_tuning/README.md"
    check_cells(read_table(page, "# Fine-tuned after an exchange"), compute)
