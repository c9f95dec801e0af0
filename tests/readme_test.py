"""What the README, the pages in docs/ and the results say: run, or read in records."""

import os
import re
import runpy
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import listops
from lra_tasks import TASKS, task
from lra_tasks.task import get_task
from nystromformer import attention, make_attention
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments import objectives
from nystromformer.experiments.config_file import load_config
from nystromformer.experiments.report.records import read_records
from nystromformer.training.data import Batch
from tests.attention import base_test
from tests.attention import contract_test as contract
from tests.commands import ROOT, SCRIPTS
from tests.page_tables import check_cell, read_table

README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "DATA.md", "results/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "results").glob("*/*.md")),
]
# Code that needs a run or weights is fenced as `python notest`: it is in colour, and is
# not run here.
SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^(?:    )?(python scripts/.*|make .*)$", re.MULTILINE)
# In a code span, or at the beginning of a command.
TARGET = re.compile(r"(?:`|^ {4})make ([a-z-]+)", re.MULTILINE)
LISTOPS = listops.get_config()


def commands_of(page: Path) -> list[str]:
    # A backslash joins the lines of a command.
    return COMMAND.findall(re.sub(r" *\\\n *", " ", page.read_text()))


def run_snippets(page: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """The names that the page's Python code leaves behind."""
    monkeypatch.setattr(attention, "ATTENTIONS", dict(ATTENTIONS))
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))
    # A page may change it. Kept programs are found by its text.
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
    names: dict = {}
    # In a reader's own program JAX promotes ranks.
    with jax.numpy_rank_promotion("allow"):
        for snippet in SNIPPET.findall(page.read_text()):
            exec(snippet, names)
    return names


def test_readme_has_its_two_commands():
    commands = [command.split("#")[0].strip() for command in commands_of(README)]
    assert {"make train", "make test"} <= set(commands)


def test_readme_snippet_gives_the_shapes_it_says(monkeypatch):
    names = run_snippets(README, monkeypatch)
    assert names["out"].shape == (2, 4096, 8, 64)
    assert names["y"].shape == (2, 4096, 512)


@pytest.fixture(scope="module")
def names_of_attention_page():
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run_snippets(ROOT / "docs/attention.md", monkeypatch)


def test_attention_page_gives_the_shapes_and_layers_it_says(names_of_attention_page):
    names = names_of_attention_page
    assert names["out"].shape == (2, 1000, 8, 64)
    assert names["y"].shape == (2, 1000, 512)
    assert names["z"].shape == (2, 1000, 512)
    assert names["logits"].shape == (2, 2)
    assert names["split_logits"].shape == (jax.device_count(), 2)
    assert names["split_logits"].sharding.is_equivalent_to(names["by_example"], ndim=2)
    assert names["row"].shape == (1, 1000)
    assert names["kinds"] == ["SoftmaxAttention", *["NystromAttention"] * 3]
    attentions = [block.attention.attention for block in names["mixed"].encoder.blocks]
    assert [x.num_landmarks for x in attentions[1:]] == [64, 64, 128]


def test_attention_page_has_the_row_of_the_valid_tokens(names_of_attention_page):
    names = names_of_attention_page
    row = names["row"][0]
    np.testing.assert_array_equal(row[700:], 0)
    matrix = names["left"] @ names["middle"] @ names["right"]
    np.testing.assert_allclose(row, matrix[0], rtol=1e-4, atol=1e-6)


@pytest.fixture
def names_of_extending_page(monkeypatch):
    return run_snippets(ROOT / "docs/extending.md", monkeypatch)


def test_extending_page_registers_what_it_says(names_of_extending_page):
    names = names_of_extending_page
    values = jnp.ones((1, 5, 2, 3))
    sizes = {"num_heads": 2, "head_dim": 3, "max_length": 5}
    for name in ("mine", "gated"):
        mean = make_attention(name, **sizes, rngs=nnx.Rngs(0))
        np.testing.assert_array_equal(mean(values, values, values), values)

    doubled = names["Doubled"](**sizes, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(doubled(values, values, values), 2 * values)

    gated = make_attention("gated", **sizes, rngs=nnx.Rngs(0))
    gate = np.array([2.0, 3.0])
    gated.gate[...] = jnp.asarray(gate)
    expected = np.ones((1, 5, 2, 3)) * gate[:, None]
    np.testing.assert_array_equal(gated(values, values, values), expected)


def check_contract(name: str) -> None:
    """What CONTRIBUTING asks of every attention, also in half precision."""
    contract.test_attention_ignores_added_padding_at_any_length(name)
    contract.test_attention_of_padding_alone_is_finite(name)
    contract.test_attention_has_gradients_for_its_projections_and_parameters(name)
    contract.test_attention_in_bfloat16_is_near_float32(name, has_mask=True)
    for mask in (None, contract.MASK[:, None, None]):
        contract.test_attention_promotes_no_dtype_unasked(name, jnp.bfloat16, mask)
    base_test.test_attention_takes_values_of_another_number_of_features(name)
    contract.test_attention_in_float16_has_room_for_sums_over_many_keys(name)


@pytest.mark.parametrize("name", ["mine", "gated"])
def test_attentions_of_the_extending_page_pass_the_contract(
    names_of_extending_page, name
):
    check_contract(name)


def test_attention_of_the_example_passes_the_contract(monkeypatch):
    monkeypatch.setattr(attention, "ATTENTIONS", dict(ATTENTIONS))
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))
    monkeypatch.setattr(task, "TASKS", dict(TASKS))
    runpy.run_path(str(ROOT / "examples/custom.py"))
    check_contract("average")


def test_extending_page_has_a_preset_of_listops(tmp_path):
    text = (ROOT / "docs/extending.md").read_text()
    [snippet] = [x for x in SNIPPET.findall(text) if "listops.PRESETS" in x]
    (tmp_path / "my_listops.py").write_text(snippet)
    config = load_config(f"{tmp_path}/my_listops.py:nystrom,quick,wide")
    assert (config.model.model_dim, config.model.mlp_dim) == (128, 256)
    assert config.attention.options["num_landmarks"] == 6


def test_extending_page_has_the_squared_error_of_the_probabilities(
    names_of_extending_page,
):
    brier = objectives.OBJECTIVES["brier"].make_objective(get_task("listops"))
    logits = jnp.log(jnp.array([[0.9, 0.1], [0.6, 0.4]]))
    weights = jnp.array([1.0, 0.0])
    batch = Batch(
        inputs=jnp.zeros((2, 1), jnp.int32),
        mask=None,
        labels=jnp.array([0, 1]),
        weights=weights,
        example_ids=jnp.zeros(2, jnp.int32),
    )
    sums = brier(lambda inputs, mask, dropout_rng: logits, batch, None)
    means = {name: float(total / weight) for name, (total, weight) in sums.items()}
    assert means == pytest.approx({"loss": 2 * 0.1**2, "accuracy": 1}, rel=1e-5)


def test_pages_have_commands_of_all_scripts():
    commands = [command for page in PAGES for command in commands_of(page)]
    assert len(commands) >= 60
    words = {word for command in commands for word in command.split()}
    assert words >= {f"scripts/{name}" for name in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS)
def test_commands_of_all_pages_know_their_flags_files_and_keys(commands, script):
    help_run = commands.run(script, "--help")
    assert help_run.returncode == 0, help_run.stderr
    for page in PAGES:
        for command in commands_of(page):
            program, *arguments = shlex.split(command, comments=True)
            if program == "python" and arguments[0] == f"scripts/{script}":
                check_arguments(arguments[1:], help_run.stdout)


def check_arguments(arguments: list[str], help_text: str) -> None:
    """Every flag stands in the help; every config can run as it is written.

    A sweep without --config has files of its own. Their keys are those of ListOps, but
    for the options of a task and of an attention.
    """
    file = None
    changes = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if name == "config":
            file = value
        elif name.startswith("config."):
            changes[name.removeprefix("config.")] = value
        elif argument.startswith("--"):
            flag = rf"^  --(\[no\])?{re.escape(name)}[:=]"
            assert re.search(flag, help_text, re.MULTILINE), argument

    if file is None:
        for key in changes:
            group, name = key.split(".")
            is_option = group in ("task", "attention")
            assert is_option or name in LISTOPS[group], key
    # A reader's own file is run by a test of its page.
    elif not file.startswith(("my_arrays.py", "my_listops.py")):
        load_config(f"{ROOT}/{file}", changes)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_targets_and_files_that_are_there(page):
    text = page.read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in TARGET.findall(text):
        assert f"\n{target}:" in makefile, target
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / path).exists(), path


def test_readme_map_names_files_that_are_there():
    _, after = README.read_text().split("## Find your way")
    tree, *_ = after.split("\n## ")
    names = re.findall(r"^    ([^\s,]+)", tree, re.MULTILINE)
    assert len(names) >= 8
    for name in names:
        assert (ROOT / name).exists(), name


# The rows of README's first table that are not called by the name of the attention.
ROW_NAMES = {
    ("identity", None): "identity (no attention)",
    ("softmax", None): "softmax (exact attention)",
    ("nystrom", 0): "nystrom without its convolution",
}


FOLDERS = {"Recall": "recall", "short ListOps": "listops_short"}
# README's Recall has 16 pairs, and 64 landmarks, features or tokens of a window.
SIZES_OF_RECALL = {
    "attention.num_landmarks",
    "attention.num_features",
    "attention.window",
    "attention.block_size",
    "attention.bucket_size",
    "attention.projection_dim",
}


def is_in_readme(record: Mapping[str, Any], folder: str) -> bool:
    """Whether a run of these results has a row in README's table."""
    overrides = record["config"]["overrides"]
    if folder == "listops_short":
        # README has the presets, and nystrom without its convolution.
        changes = overrides.keys() - {"train.seed", "attention.conv_kernel_size"}
        return record["run"].startswith("quick/") and not changes
    if folder == "quick_tasks" and record["result"]["task"] == "image":
        return record["run"].startswith("quick-image")  # with black pixels masked
    if folder == "recall":
        sizes = [overrides[key] for key in SIZES_OF_RECALL & overrides.keys()]
        is_of_the_plan = record["run"].startswith("plan/")
        return (
            is_of_the_plan and overrides["task.num_pairs"] == 16 and sizes in ([], [64])
        )
    return True


def read_quick_records(column: str) -> dict[str, list[float]]:
    """The test accuracies in % of recorded runs by the row of README's table.

    Args:
      column: "short ListOps", or the task with a capital letter.

    Returns:
      The name of each row and the accuracies of its seeds in order. The floor's row has
      the best floor.
    """
    folder = FOLDERS.get(column, "quick_tasks")
    task = column.removeprefix("short ").lower()
    rows: dict[str, list[float]] = {}
    # They are sorted by their names, which end in the seed.
    for record in read_records([ROOT / "results" / folder]):
        result = record["result"]
        options = record["config"]["attention"]
        if result["task"] != task:
            continue
        if not is_in_readme(record, folder):
            continue
        name = options["name"]
        row = ROW_NAMES.get((name, options.get("conv_kernel_size")), name)
        rows.setdefault(row, []).append(100 * result["test_accuracy"])
        rows["best floor, a fixed rule"] = [100 * max(result["floors"].values())]
    return rows


@pytest.mark.parametrize(
    "column", ["Recall", "short ListOps", "Text", "Retrieval", "Image"]
)
def test_readme_has_the_accuracies_of_the_quick_records(column):
    """Each cell is a mean and a deviation over the seeds, or the one of a floor."""
    cells = read_table("README.md", "## Results")[column].to_dict()
    if column == "Recall":
        # Models of Recall have a convolution in front of every attention.
        assert cells.pop("nystrom") == "not run"

    records = read_quick_records(column)
    assert {"best floor, a fixed rule", "softmax (exact attention)"} <= cells.keys()
    assert cells.keys() <= records.keys()
    for row, cell in cells.items():
        accuracies = records[row]
        if "±" in cell:
            assert len(accuracies) == 3, row
            numbers = [np.mean(accuracies), np.std(accuracies, ddof=1)]
        else:
            numbers = accuracies
        check_cell(cell, numbers)
