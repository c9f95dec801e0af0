"""The command as a person starts it; its CSV against values computed independently."""

import csv
import json
import shutil

import numpy as np
import pytest

from nystromformer.lab.study.smooth import smooth_inputs
from tests import paper

FIGURES = ("landmarks", "iterations", "bound", "spectrum", "matrices")


@pytest.fixture(scope="module")
def unoptimized(commands):
    """Its many small programs compile faster so."""
    return commands.with_env(JAX_DISABLE_MOST_OPTIMIZATIONS="1")


def run(commands, out, *args):
    args = (*args, "--iterations=6")
    done = commands.run("approximation.py", f"--out={out}", *args)
    assert done.returncode == 0, done.stderr
    page = (out / "README.md").read_text()
    tables = {}
    for name in FIGURES:
        with open(out / f"{name}.csv", newline="") as file:
            tables[name] = [*csv.DictReader(file)]
        assert f"![{name}]({name}.png)" in page
        assert all((out / f"{name}.{kind}").is_file() for kind in ("png", "svg"))
    return tables, page


@pytest.mark.slow
def test_smooth_inputs_give_the_errors_of_the_paper(unoptimized, tmp_path):
    args = ("--inputs=smooth", "--length=24", "--examples=2", "--landmarks=5")
    tables, page = run(unoptimized, tmp_path / "out", *args)
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
    assert all(float(r["error"]) <= float(r["bound"]) for r in tables["bound"])
    assert len(tables["spectrum"]) == 4 * 24
    assert len(tables["matrices"]) == 2 * 3  # heads, pictures beside the exact one


def test_a_trained_run_is_looked_at_and_not_changed(unoptimized, finished, tmp_path):
    workdir, _ = finished
    result = json.loads((workdir / "result.json").read_text())
    args = (f"--workdir={workdir}", "--examples=1", "--landmarks=4")
    before = sorted(path.name for path in workdir.rglob("*"))
    tables, page = run(unoptimized, tmp_path / "out", *args)
    assert sorted(path.name for path in workdir.rglob("*")) == before
    assert f"weights of step {result['best_step']:,}" in page
    assert f"test accuracy {result['test_accuracy']:.2%}" in page
    assert {(r["layer"], r["head"]) for r in tables["bound"]} == {
        ("0", "0"),
        ("0", "1"),
    }
    assert all(0 < float(r["error"]) <= float(r["bound"]) for r in tables["bound"])


def test_what_cannot_be_looked_at_is_one_line(commands, finished, tmp_path):
    untrained = tmp_path / "untrained"
    shutil.copytree(finished[0], untrained)
    shutil.rmtree(untrained / "checkpoints")
    cases = {
        f"--workdir={tmp_path}": "is no run",
        f"--workdir={untrained}": "has no checkpoints yet",
        "--landmarks=512": "the longest sequence has 512 tokens",
        "--inputs=noise": "inputs",
    }
    for arg, message in cases.items():
        done = commands.run("approximation.py", f"--out={tmp_path}/out", arg)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert message in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").touch()
    done = commands.run("approximation.py", f"--out={tmp_path}/file", "--length=8")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "file: " in done.stderr
