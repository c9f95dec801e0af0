"""The whole folder of a report, or one error and nothing."""

import csv
import shutil

import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.report.build import build, check_output
from nystromformer.experiments.report.runs import read_runs


def snapshot(folder):
    return {path: path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def read_csv(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


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
    assert said == [f"3 of 4 runs finished; see {tmp_path}/out/report.html"]
    assert snapshot(sweep) == before
    rows = read_csv(tmp_path / "out" / "accuracy.csv")
    assert {row["variant"]: row["mean"] for row in rows} == {
        "nystrom, 16 landmarks": "51.60",
        "nystrom, 64 landmarks": "56.40",
        "softmax": "60.00",
    }
    names = [row["run"] for row in read_csv(tmp_path / "out" / "runs.csv")]
    assert names == ["nystrom/16", "nystrom/64", "softmax/0", "softmax/1"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert page.count("<img") == len(figures) / 2 == 4
    assert sorted(x.name for x in tmp_path.iterdir()) == ["out", "runs"]


def test_a_report_takes_the_place_of_an_earlier_one_and_has_the_same_bytes(
    runs, tmp_path
):
    def made():
        build([runs.folder], tmp_path / "out")
        files = [x for x in (tmp_path / "out").rglob("*") if x.is_file()]
        return {x.relative_to(tmp_path): x.read_bytes() for x in files}

    first = runs.finished("one")
    before = made()
    assert made() == before
    runs.finished("other", task="image")
    shutil.rmtree(first)
    after = {path.name for path in made()}
    assert "image_curves_train_loss.svg" in after
    assert "listops_curves_train_loss.svg" not in after


def test_what_is_damaged_foreign_or_doubled_is_left_out_with_a_warning(sweep, tmp_path):
    shutil.copytree(sweep / "softmax", sweep / "copy")
    (sweep / "nystrom" / "16" / "metrics.jsonl").write_text("{\n{}\n")
    (sweep / "foreign").mkdir()
    (sweep / "foreign" / "config.json").write_text('{"model_type": "bert"}')
    *warnings, done = build([sweep], tmp_path / "out")
    assert done.startswith("2 of 3 runs finished")
    names = ["runs/foreign", "runs/nystrom/16", "runs/softmax/0", "runs/softmax/1"]
    page = (tmp_path / "out" / "report.md").read_text()
    for name, warning in zip(names, warnings, strict=True):
        assert warning.startswith(f"warning: {name} is left out: ")
        assert f"Warning: {name} is left out" in page


def test_what_somebody_else_has_written_is_never_written_over(runs, tmp_path):
    runs.finished("one")
    thesis = tmp_path / "thesis" / "report.md"
    thesis.parent.mkdir()
    thesis.write_text("# Report\n\nWhat I think of it.\n")
    with pytest.raises(ConfigError, match="not empty and was not made by this command"):
        build([runs.folder], thesis.parent)
    build([runs.folder], tmp_path / "out")
    for name in ("notes.txt", "figures/mine.png"):
        path = tmp_path / "out" / name
        path.touch()
        with pytest.raises(ConfigError, match=f"out holds {name}, which is not part"):
            build([runs.folder], tmp_path / "out")
        path.unlink()
    assert thesis.exists()


def test_an_out_that_cannot_be_leaves_the_runs_as_they_were(sweep, tmp_path):
    file = tmp_path / "file"
    file.touch()
    before = snapshot(tmp_path)
    for out in (sweep / "softmax" / "0" / "report", sweep, file):
        with pytest.raises(ConfigError, match=f"--out={out} "):
            build([sweep], out)
    with pytest.raises(OSError, match="file"):
        build([sweep], file / "report")
    assert snapshot(tmp_path) == before
    check_output(sweep / "report", read_runs([sweep])[0])  # beside the runs


def test_after_an_error_the_earlier_report_is_as_it_was(runs, tmp_path, monkeypatch):
    runs.finished("one")
    build([runs.folder], tmp_path / "out")
    before = snapshot(tmp_path / "out")

    def full(*_):
        raise SystemExit(143)

    monkeypatch.setattr("nystromformer.experiments.report.build.texts", full)
    with pytest.raises(SystemExit):
        build([runs.folder], tmp_path / "out")
    assert snapshot(tmp_path / "out") == before
    assert sorted(x.name for x in tmp_path.iterdir()) == ["out", "runs"]
