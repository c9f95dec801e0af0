"""The command as a person starts it; its CSV against values computed independently."""

import csv
import json

import numpy as np
import pytest

from nystromformer.lab.study.smooth import smooth_inputs
from tests import paper

FIGURES = (
    *("landmarks", "iterations", "bound", "spectrum"),
    *("choices", "numbers", "iterates", "inverses"),
)


def run(commands, out, *args):
    commands = commands.with_env(JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    args = (*args, "--iterations=6")
    done = commands.run("approximation.py", f"--out={out}", *args)
    assert done.returncode == 0, done.stderr
    assert f"{out}/README.md" in done.stdout
    page = (out / "README.md").read_text()
    tables = {}
    for name in ("landmarks", "iterations", "spectrum"):
        with open(out / f"{name}.csv", newline="") as file:
            tables[name] = [*csv.DictReader(file)]
    for name in FIGURES:
        assert f"![{name}]({name}.png)" in page
        assert all((out / f"{name}.{kind}").is_file() for kind in ("png", "svg"))
    return tables, page


@pytest.mark.slow
def test_smooth_inputs_give_the_errors_of_the_paper(commands, tmp_path):
    args = ("--inputs=smooth", "--length=24", "--examples=2", "--landmarks=5")
    tables, page = run(commands, tmp_path / "out", *args)
    assert "- Command: `python scripts/approximation.py --out=" in page
    assert "- Inputs: smooth, 2 of length 24" in page
    arrays = smooth_inputs(24, batch_size=2, num_heads=2, head_dim=32)
    valid = np.ones(24, bool)
    rows = [r for r in tables["landmarks"] if r["landmarks"] == "segment_means"]
    assert len(rows) == 4
    for row in rows:
        head = (np.float64(x[int(row["example"]), :, int(row["head"])]) for x in arrays)
        query, key, value = head
        exact = paper.attention(query, key, value, [*range(24)])
        error = np.linalg.norm(paper.nystrom(query, key, value, valid, 5) - exact)
        assert float(row["error"]) == pytest.approx(
            error / np.linalg.norm(exact), rel=1e-5
        )
    assert len(tables["spectrum"]) == 4 * 24


def test_a_trained_run_is_looked_at_and_not_changed(commands, finished, tmp_path):
    workdir, _ = finished
    result = json.loads((workdir / "result.json").read_text())
    args = (f"--workdir={workdir}", "--examples=1", "--example=3", "--landmarks=4")
    before = sorted(path.name for path in workdir.rglob("*"))
    tables, page = run(commands, tmp_path / "out", *args)
    assert sorted(path.name for path in workdir.rglob("*")) == before
    assert f"weights of step {result['best_step']:,}" in page
    assert f"test accuracy {result['test_accuracy']:.2%}" in page
    assert "the pictures show example 3" in page
    places = {(r["layer"], r["head"]) for r in tables["landmarks"]}
    assert places == {("0", "0"), ("0", "1")}
    for row in tables["landmarks"]:
        if row["landmarks"] == "segment_means":
            assert 0 < float(row["distance"]) <= float(row["bound"])


def test_what_cannot_be_looked_at_is_one_line(commands, finished, tmp_path):
    cases = {
        f"--workdir={tmp_path}": "is no run",
        "--landmarks=512": "the longest sequence has 512 tokens",
        "--example=8": "there are 8, from 0 on",
        "--inputs=noise": "inputs",
    }
    for arg, message in cases.items():
        done = commands.run("approximation.py", f"--out={tmp_path}/out", arg)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr
    assert not (tmp_path / "out").exists()
