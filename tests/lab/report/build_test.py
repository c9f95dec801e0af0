"""The whole folder of a report, or one error and nothing."""

import csv
import shutil

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.report.build import build


def snapshot(folder):
    return {path: path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


@pytest.fixture
def sweep(runs):
    """Two attentions; one run on its way."""
    for landmarks in (16, 64):
        config = {"attention__num_landmarks": landmarks}
        runs.finished(f"nystrom/{landmarks}", 0.5 + landmarks / 1000, **config)
    runs.finished("softmax/0", 0.6, arg="softmax,quick")
    runs.unfinished("softmax/1", arg="softmax,quick", seed=1)
    return runs.folder


def test_a_report_is_written_and_no_run(sweep, tmp_path):
    before = snapshot(sweep)
    said = build([sweep / "nystrom", sweep / "softmax"], tmp_path / "out")
    assert said == f"3 of 4 runs finished; see {tmp_path}/out/report.html"
    assert snapshot(sweep) == before
    with open(tmp_path / "out" / "accuracy.csv", encoding="utf-8") as file:
        found = {row["variant"]: row["test_accuracy"] for row in csv.DictReader(file)}
    assert found == {
        "nystrom, 16 landmarks": "51.60",
        "nystrom, 64 landmarks": "56.40",
        "softmax": "60.00",
    }
    with open(tmp_path / "out" / "runs.csv", encoding="utf-8") as file:
        names = [row["run"] for row in csv.DictReader(file)]
    assert names == [
        *("nystrom/16", "nystrom/64"),
        *("softmax/0", "softmax/1"),
    ]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert page.count("<img") == len(figures) / 2 == 4


def test_the_same_runs_give_the_same_bytes(runs, tmp_path):
    runs.finished("one")

    def made(name):
        build([runs.folder], tmp_path / name)
        files = [x for x in (tmp_path / name).rglob("*") if x.is_file()]
        return {x.relative_to(tmp_path / name): x.read_bytes() for x in files}

    assert made("one") == made("other")


def break_line(sweep):
    path = sweep / "nystrom" / "16" / "metrics.jsonl"
    path.write_text("{\n" + path.read_text())


BAD = {
    "none": (lambda s: None, "none", "none: no such folder"),
    "empty": (lambda s: (s / "x").mkdir(), "x", "x holds no run"),
    "file": (lambda s: (s / "x").touch(), "x", "x is a file"),
    "line": (break_line, ".", r"16/metrics\.jsonl:1 is not valid JSON"),
    "twice": (
        lambda s: shutil.copytree(s / "softmax", s / "copy"),
        ".",
        "copy/0 and .*softmax/0 hold the same settings and seed",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_after_bad_input_nothing_is_written(sweep, tmp_path, case):
    damage, given, message = BAD[case]
    damage(sweep)
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=message):
        build([sweep / given], tmp_path / "out")
    assert snapshot(tmp_path) == before


def test_an_out_that_cannot_be_leaves_the_runs_as_they_were(sweep, tmp_path):
    (tmp_path / "file").touch()
    before = snapshot(tmp_path)
    file = tmp_path / "file"
    for out in (sweep / "softmax" / "0" / "report", sweep, file, file / "report"):
        with pytest.raises(ConfigError, match=f"--out={out} "):
            build([sweep], out)
    assert snapshot(tmp_path) == before
