"""Tables of times and memory, on the speed page and in docs/, are as on record."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.speed.attentions import PASSES
from nystromformer.experiments.speed.named_tables import FLASH_32, FLASH_64
from nystromformer.experiments.speed.page import fit_exponent, make_tables
from nystromformer.experiments.speed.rows import MEMORY, TIME, Names, Row, RowKey
from tests.commands import ROOT
from tests.page_tables import check_cell, read_table

PAGE = "results/speed/README.md"


def read_rows(folder):
    """The rows that a benchmark has measured."""
    record = json.loads(
        (ROOT / "results/speed" / folder / "benchmark.json").read_text()
    )
    return [Row(**{**row, "key": RowKey(**row["key"])}) for row in record["rows"]]


def read_costs(folder, what, unit):
    """The costs of a pass, in ms or MiB, NaN where there is none.

    Attentions are down, and across the columns of the benchmark's page.
    """
    rows = read_rows(folder)
    names = Names.of(rows)
    costs: dict[str, dict[str, float | None]] = {}
    for row in rows:
        if row.key.what == what:
            costs.setdefault(names.column(row), {})[row.key.attention] = row.value(unit)
    return pd.DataFrame(costs)


def name_rows(costs, attentions, ratios=()):
    """The costs of attentions, then the ratios of two, by the labels of the page."""
    rows = {label: costs.loc[name] for label, name in attentions.items()}
    for label, name, other in ratios:
        rows[label] = costs.loc[name] / costs.loc[other]
    return pd.DataFrame(rows).T


def join_cells(*tables):
    """Lists the numbers of each (row, column), one from each table that has it."""
    cells = {}
    for place in itertools.product(tables[0].index, tables[0].columns):
        numbers = [table.loc[place] for table in tables]
        cells[place] = [number for number in numbers if pd.notna(number)]
    return cells


def compute_attention_on_h200():
    folder = "h200/attention_2048_to_32768"
    attentions = {
        "nystrom, 64 landmarks": "nystrom-64",
        "nystrom, 64 landmarks … with `fused=True`": "nystrom-64, fused=true",
        "softmax, which calls cuDNN's kernel": "softmax",
        "cuDNN's exact attention, called alone": "cudnn-softmax",
        "PyTorch's exact attention": "torch-softmax",
    }
    ratios = [
        ("cuDNN's ÷ nystrom-64", "cudnn-softmax", "nystrom-64"),
        ("PyTorch's ÷ nystrom-64", "torch-softmax", "nystrom-64"),
    ]
    passes = [read_costs(folder, what, TIME) for what in PASSES]
    return join_cells(*[name_rows(costs, attentions, ratios) for costs in passes])


def compute_steps_on_h200():
    ours = "nystrom-64 + convolution of 35"
    theirs = f"hf-{ours}"
    attentions = {
        "nystrom, 64 landmarks": ours,
        "transformers' Nyströmformer": theirs,
    }
    columns = {
        "listops 32 × 2,000": "ListOps, 32 × 2,000",
        "text 32 × 4,000": "Text, 32 × 4,000",
        "image 256 × 1,024": "Image, 256 × 1,024",
        "retrieval 32 × 4,000": "Retrieval, 32 × 2 × 4,000",  # pairs of documents
    }
    costs = read_costs("h200/train_steps", "train step", TIME).rename(columns=columns)
    return join_cells(name_rows(costs, attentions, [("÷ nystrom", theirs, ours)]))


def compute_flashnystrom(times, num_landmarks, num_heads):
    """The times that FlashNystrom's README states, with the gradient."""
    exact = f"FlashAttention-3, {num_heads} heads, on an H100"
    names = {
        "FlashNystrom on an H100": f"FlashNystrom-{num_landmarks} on an H100",
        "FlashNystrom on an A100": f"FlashNystrom-{num_landmarks} on an A100",
        "FlashAttention-3 on an H100": exact,
    }
    return {
        (label, f"{length:,}"): [with_gradient]
        for label, name in names.items()
        for length, (_, with_gradient) in times[name].items()
    }


def compute_attention_on_cpu():
    attentions = {
        "exact attention, all scores at once": "softmax_all_scores",
        "our exact attention, in blocks (softmax)": "softmax",
        "PyTorch's exact attention": "torch-softmax",
        "nystrom, 64 landmarks": "nystrom-64 + convolution of 35",
        "nystrom, 32 landmarks": "nystrom-32 + convolution of 35",
    }
    ratios = [
        ("softmax ÷ nystrom-64", "softmax", "nystrom-64 + convolution of 35"),
        ("PyTorch's ÷ nystrom-64", "torch-softmax", "nystrom-64 + convolution of 35"),
    ]
    costs = read_costs("cpu_attention", "forward+backward", TIME)
    table = name_rows(costs, attentions, ratios)
    lengths = [int(column.replace(",", "")) for column in table.columns]
    for label in attentions:
        curve = dict(zip(lengths, table.loc[label, costs.columns], strict=True))
        table.loc[label, "exponent"] = float(fit_exponent(curve))
    return join_cells(table)


def compute_memory():
    convolution = "… with its convolution of V"
    attentions = {
        "exact attention, all scores at once": "softmax_all_scores",
        "exact attention in blocks, ours": "softmax",
        "nystrom, 64 landmarks": "nystrom-64",
        f"nystrom, 64 landmarks {convolution}": "nystrom-64 + convolution of 35",
        "nystrom, 32 landmarks": "nystrom-32",
        f"nystrom, 32 landmarks {convolution}": "nystrom-32 + convolution of 35",
        "linformer, 256 rows": "linformer-256",
        "longformer, window of 256 (paper: 257)": "longformer-256",
    }
    memory = name_rows(read_costs("memory", "forward", MEMORY), attentions)
    all_scores = memory.loc["exact attention, all scores at once"]
    factors = all_scores / memory
    factors.loc[all_scores.name] = None
    # The paper's Table 1.
    published = pd.read_csv(ROOT / "results/speed/memory/published.csv", index_col=0)
    published.columns = ["paper: 512", "paper: 2,048", "paper: 8,192"]
    names = pd.Series(attentions).replace("longformer-256", "longformer-257")
    published = published.reindex(names).set_index(pd.Index(attentions))
    return join_cells(memory, factors) | join_cells(published)


def list_quartiles(numbers):
    """The median, then the quartiles."""
    return list(np.quantile(numbers, (0.5, 0.25, 0.75)))


def compute_steps_on_cpu():
    nystrom_64 = "nystrom-64 + convolution of 35"
    nystrom_128 = "nystrom-128 + convolution of 35"
    softmax = "softmax, dropout_rate=0.0"
    names = {
        "nystrom, 64 landmarks": nystrom_64,
        "nystrom, 64 landmarks in 4 parts of 4 lengths": f"{nystrom_64} in 4",
        "nystrom, 128 landmarks": nystrom_128,
        "nystrom, 128 landmarks in 4 parts": f"{nystrom_128} in 4",
        "softmax, no dropout on its weights": softmax,
        "softmax, no dropout on its weights in 4 parts": f"{softmax} in 4",
        "identity": "identity",
        "identity in 4 parts": "identity in 4",
    }
    rows = {row.key.attention: row for row in read_rows("cpu_steps_text")}
    seconds = {name: np.array(row.seconds) for name, row in rows.items()}
    cells = {}
    for label, name in names.items():
        cells[label, "ms"] = list_quartiles(1e3 * seconds[name])
        cells[label, "MiB, compiled"] = [rows[name].value(MEMORY)]
        # Theirs takes a batch at once, and was measured of nystrom alone.
        theirs = seconds.get(f"hf-{name.removesuffix(' in 4')}")
        ratios = [] if theirs is None else list_quartiles(theirs / seconds[name])
        cells[label, "transformers' ÷ ours"] = ratios
    return cells


def compute_older_attention_on_h200():
    attentions = {
        "nystrom, 64 landmarks": "nystrom-64",
        "nystrom, 128 landmarks": "nystrom-128",
        "linformer, 256 rows": "linformer-256",
        "performer, 256 features": "performer-256",
        "our exact attention": "softmax",
        "cuDNN's exact attention": "cudnn",
        "PyTorch's exact attention": "torch-softmax",
    }
    passes = [read_costs("h200/attention_bfloat16", what, TIME) for what in PASSES]
    return join_cells(*[name_rows(costs, attentions) for costs in passes])


def compute_by_device(folder, lengths, attentions):
    """Time and memory with the gradient, which docs/which_attention.md has together."""
    costs = [read_costs(folder, "forward+backward", unit) for unit in (TIME, MEMORY)]
    return join_cells(*[name_rows(cost[lengths], attentions) for cost in costs])


def compute_by_device_on_cpu():
    names = ("softmax", "linformer-256", "longformer-256", "efficient", "linear")
    attentions = {name: name for name in names}
    attentions["nystrom-32"] = "nystrom-32 + convolution of 35"
    attentions["nystrom-64"] = "nystrom-64 + convolution of 35"
    return compute_by_device(
        "cpu_attention", ["512", "1,024", "2,048", "4,096"], attentions
    )


def compute_by_device_on_h200():
    return compute_by_device(
        "h200/attention_2048_to_32768",
        ["2,048", "4,096", "8,192", "32,768"],
        {"softmax": "softmax", "nystrom-64": "nystrom-64"},
    )


def compute_memory_by_landmarks():
    memory = read_costs("memory", "forward+backward", MEMORY)["2,048"]
    return {
        ("MiB", f"{count}"): [memory[f"nystrom-{count} + convolution of 35"]]
        for count in (16, 32, 64, 128, 256)
    }


def compute_training_on_h200():
    """Steps, minutes and memory of nystrom's runs at the paper's settings."""
    cells = {}
    for name in ("ListOps", "Text", "Pathfinder"):
        records = read_records([ROOT / "results" / name.lower()])
        [run] = [record for record in records if record["run"] == "h200_nystrom"]
        minutes = run["result"]["wall_seconds"] / 60
        cells[name, "steps"] = [run["config"]["train"]["num_steps"]]
        cells[name, "minutes, with compiling and validation"] = [minutes]
        cells[name, "MiB of a step"] = [run["result"]["compiled_bytes"] / 2**20]
    for name in ("Retrieval", "Image"):  # not run
        config = load_config(f"{ROOT}/configs/{name.lower()}.py:nystrom")
        cells[name, "steps"] = [config.train.num_steps]
        cells[name, "minutes, with compiling and validation"] = []
        cells[name, "MiB of a step"] = []
    return cells


WHICH = "docs/which_attention.md"
LANDMARKS = "## How many landmarks for a model of 2,000 tokens?"
TABLES = {
    (PAGE, "### Attention", 0): compute_attention_on_h200,
    (PAGE, "### Training steps", 0): compute_steps_on_h200,
    (PAGE, "## FlashNystrom's sizes", 0): lambda: compute_flashnystrom(
        FLASH_64, 64, 16
    ),
    (PAGE, "## FlashNystrom's sizes", 1): lambda: compute_flashnystrom(FLASH_32, 32, 4),
    (PAGE, "## Attention alone", 0): compute_attention_on_cpu,
    (PAGE, "## Memory, as in the paper's Table 1", 0): compute_memory,
    (PAGE, "## Whole training steps", 0): compute_steps_on_cpu,
    (PAGE, "## Older runs", 0): compute_older_attention_on_h200,
    (WHICH, "## By device", 0): compute_by_device_on_cpu,
    (WHICH, "## By device", 1): compute_by_device_on_h200,
    (WHICH, LANDMARKS, 0): compute_memory_by_landmarks,
    ("docs/accelerators.md", "## What was measured", 0): compute_training_on_h200,
}


def read_cells(page, heading, index):
    """Each cell as it is printed, by row and column.

    A label that goes on with the one above it, as "in 4 parts" does, comes with it.
    """
    table = read_table(page, heading, index)
    labels = pd.Series(table.index)
    goes_on = labels.str.match("… |in ")
    above = labels.mask(goes_on).ffill()
    table.index = pd.Index(labels.mask(goes_on, above + " " + labels))
    assert table.index.is_unique
    return table.stack().to_dict()


@pytest.mark.parametrize(
    ("page", "heading", "index"), TABLES, ids=lambda value: str(value).strip("# ")
)
def test_numbers_of_tables_are_those_of_records(page, heading, index):
    computed = TABLES[page, heading, index]()
    printed = read_cells(page, heading, index)
    assert printed.keys() == computed.keys()
    for place, cell in printed.items():
        check_cell(cell, computed[place])


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent for file in (ROOT / "results/speed").rglob("benchmark.json")),
    ids=lambda folder: folder.name,
)
def test_pages_of_benchmarks_have_the_tables_of_their_records(folder):
    rows = read_rows(folder)
    has_time = any(row.seconds for row in rows)
    page = (folder / "README.md").read_text()
    assert "\n".join(make_tables(rows, has_time)) in page
