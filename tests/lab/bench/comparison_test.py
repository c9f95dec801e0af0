"""The table of attentions on short sequences: what closed forms say about it."""

import pytest

from nystromformer.lab.bench.comparison import write_comparison

LENGTHS = (256, 512)
NAMES = ("softmax", "linear", "nystrom")

pytestmark = pytest.mark.usefixtures("optimised")


@pytest.mark.slow
def test_parameters_errors_and_memory_are_those_of_the_methods(tmp_path):
    out = tmp_path / "attentions.md"
    write_comparison(out, NAMES, LENGTHS)
    lines = out.read_text().splitlines()
    assert lines[0] == "# Attentions"
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    rows = {row[0]: row[1:] for row in cells}
    counts = {name: int(rows[name][0].replace(",", "")) for name in NAMES}
    assert counts["nystrom"] - counts["softmax"] == 2 * 2 * 35  # layers, heads, K
    assert counts["linear"] == counts["softmax"]
    assert rows["softmax"][1] == "+0.0%"
    errors = {name: [float(rows[name][i]) for i in (2, 4)] for name in NAMES}
    assert errors["softmax"] == [0, 0]
    # Smooth inputs are what landmarks are good at, and another kernel is not.
    assert 0 < max(errors["nystrom"]) < min(errors["linear"])
    memory = {
        name: [[float(x) for x in rows[name][i].split(" / ")] for i in (3, 5)]
        for name in NAMES
    }
    for length, (forward, backward) in zip(LENGTHS, memory["softmax"], strict=True):
        assert 2 * length**2 * 4 / 2**20 <= forward < backward  # heads, float32
    (_, short), (_, long) = memory["nystrom"]
    assert long < 2.2 * short


def test_what_cannot_be_is_one_line_and_no_other_file_is_touched(commands, tmp_path):
    (tmp_path / "thesis.md").write_text("# Thesis\n")
    for file, message in (("thesis", "not made by this"), ("out", "linformer at 7")):
        args = (f"--out={tmp_path}/{file}.md", "--length=7", "--attention=linformer")
        done = commands.run("attention_table.py", *args)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
    assert (tmp_path / "thesis.md").read_text() == "# Thesis\n"
