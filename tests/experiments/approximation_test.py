"""The command as a person starts it, on a trained run."""

import csv
import json

from tests.commands import refused

FIGURES = (
    *("landmarks", "iterations", "bound", "spectrum"),
    *("choices", "numbers", "iterates", "inverses"),
)


def test_approximation_measures_a_run(commands, finished, tmp_path):
    workdir, _ = finished
    result = json.loads((workdir / "result.json").read_text())
    args = (f"--workdir={workdir}", "--examples=1", "--example=3", "--landmarks=4")
    quick = commands.with_env(JAX_DISABLE_MOST_OPTIMIZATIONS="1")
    out = tmp_path / "out"
    done = quick.run("approximation.py", f"--out={out}", *args, "--iterations=6")
    assert done.returncode == 0, done.stderr
    page = (out / "README.md").read_text()
    assert f"best weights of step {result['best_step']:,}" in page
    assert f"test accuracy {result['test_accuracy']:.2%}" in page
    assert "the pictures show example 3" in page
    for name in FIGURES:
        assert f"![{name}]({name}.png)" in page
        assert all((out / f"{name}.{kind}").is_file() for kind in ("png", "svg"))
    with open(out / "landmarks.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert {(row["layer"], row["head"]) for row in rows} == {("0", "0"), ("0", "1")}
    methods = {row["method"] for row in rows}
    assert {"random", "k-means", "double softmax", "linformer", "performer"} < methods
    for row in rows:
        if row["method"] == "segment means":
            assert 0 < float(row["distance"]) <= float(row["bound"])


def test_approximation_rejects_in_one_line(commands, finished, tmp_path):
    cases = {
        f"--workdir={tmp_path}": "is not a run",
        "--landmarks=512": "--landmarks must be below the longest sequence, 512",
        "--example=8": "there are 8, from 0 on",
        "--inputs=noise": "inputs",
    }
    for arg, message in cases.items():
        done = commands.run("approximation.py", f"--out={tmp_path}/out", arg)
        assert message in refused(done)
    assert not (tmp_path / "out").exists()
