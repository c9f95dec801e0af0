"""The command as a person starts it, on a trained run."""

import csv
import json
import re

from tests.commands import refused


def test_approximation_measures_a_run(commands, finished, tmp_path):
    workdir, _ = finished
    result = json.loads((workdir / "result.json").read_text())
    args = (f"--workdir={workdir}", "--examples=1", "--landmarks=4")
    out = tmp_path / "out"
    done = commands.run("approximation.py", f"--out={out}", *args)
    assert done.returncode == 0, done.stderr
    assert "measuring landmarks: " in done.stdout
    page = (out / "README.md").read_text()
    assert "by the choice of 4 landmarks" in page
    assert f"best weights of step {result['best_step']:,}" in page
    names = re.findall(r"!\[(\w+)\]\(\1[.]png\)", page)
    assert {"landmarks", "iterations", "spectrum", "iterates"} < {*names}
    for name in names:
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
    out = f"--out={tmp_path}/out"
    done = commands.run("approximation.py", f"--workdir={tmp_path}", out)
    assert "is not a run" in refused(done)
    args = f"--workdir={finished[0]}", "--landmarks=512", out
    said = refused(commands.run("approximation.py", *args))
    assert "--landmarks must be below the longest" in said
    assert not (tmp_path / "out").exists()
