"""The table of attentions on short sequences: what closed forms say about it."""

import re

import pytest

LENGTHS = (256, 512)
NAMES = ("softmax", "linear", "nystrom")


@pytest.fixture(scope="module")
def table(commands, tmp_path_factory):
    """The text of the file, and its rows: name -> cells."""
    out = tmp_path_factory.mktemp("table") / "attentions.md"
    rows = [f"--attention={name}" for name in NAMES]
    done = commands.run(
        "attention_table.py", f"--out={out}", "--length=256", "--length=512", *rows
    )
    assert done.returncode == 0, done.stderr
    cells = [line.strip("| ").split(" | ") for line in out.read_text().splitlines()]
    return out.read_text(), {row[0]: row[1:] for row in cells if row[0] in NAMES}


def mib(cell):
    forward, backward = cell.split(" / ")
    return float(forward), float(backward)


@pytest.mark.slow
def test_the_head_says_how_to_make_it_again(table):
    text, _ = table
    assert re.search(
        r"^- Command: `python scripts/attention_table.py --out=", text, re.M
    )
    assert re.search(r"^- Commit: \w+", text, re.M)
    assert re.search(r"^- Versions: python 3\..* jax \d", text, re.M)


@pytest.mark.slow
def test_parameters_differ_by_the_kernels_of_nystrom(table):
    _, rows = table
    counts = {name: int(row[0].replace(",", "")) for name, row in rows.items()}
    assert counts["nystrom"] - counts["softmax"] == 2 * 2 * 35  # layers, heads, K
    assert counts["linear"] == counts["softmax"]
    assert rows["softmax"][1] == "+0.0%"


@pytest.mark.slow
def test_the_errors_are_those_of_the_method(table):
    _, rows = table
    errors = {name: [float(row[2]), float(row[4])] for name, row in rows.items()}
    assert errors["softmax"] == [0, 0]
    # Smooth inputs are what landmarks are good at, and another kernel is not.
    assert 0 < max(errors["nystrom"]) < min(errors["linear"])


@pytest.mark.slow
def test_softmax_holds_the_square_and_more_of_it_for_the_gradient(table):
    _, rows = table
    for length, cell in zip(LENGTHS, rows["softmax"][3::2], strict=True):
        square = 2 * length**2 * 4 / 2**20  # heads, float32
        forward, backward = mib(cell)
        assert square <= forward < backward
    short, long = (mib(cell)[1] for cell in rows["nystrom"][3::2])
    assert long < 2.2 * short


@pytest.mark.parametrize("length", ["0", "many", "7"])
def test_lengths_that_cannot_be_are_one_line(commands, tmp_path, length):
    args = (f"--out={tmp_path}/out.md", f"--length={length}", "--attention=linformer")
    done = commands.run("attention_table.py", *args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "length" in done.stderr
