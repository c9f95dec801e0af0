"""The folder of a report: whole, self-contained, and nobody else's."""

import re

import markupsafe
import pandas as pd
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.report.build import build
from tests.commands import refused
from tests.experiments.report.conftest import SOFTMAX

NASTY = """<script>alert("x")</script> & 'y'"""


def test_build_writes_pages_tables_and_figures(three, tmp_path):
    three.add("softmax,quick")
    out = tmp_path / "out"
    assert build([three.folder], out) == f"3 of 4 runs finished; see {out}/report.html"
    numbers = pd.read_csv(out / "scores.csv").set_index("label")
    nystrom = numbers.loc["nystrom"]
    assert nystrom["mean"] == pytest.approx(51.5)
    assert nystrom["std"] == pytest.approx(4.5**0.5)
    assert nystrom["count"] == 2
    accuracies = pd.read_csv(out / "runs.csv")["test_accuracy"].dropna()
    assert list(accuracies) == [0.5, 0.53, 0.47]

    page = (out / "report.html").read_text()
    assert page.count(">81942<") == 3
    assert page.count(">majority class 0.12, root operator 0.25<") == 3
    assert "Exact by length" not in page  # No attention here counts such examples.
    assert "nan<" not in page

    text = (out / "report.md").read_text()
    assert "| nystrom | 51.50 ± 2.12 (2) |" in text
    for content in (page, text):
        assert "one comparison in twenty exceeds chance" in content
    figures = re.findall(r"\]\((figures/.*?)\)", text)
    # The figures are speed, memory and two curves.
    assert len(figures) == 4
    for path in figures:
        assert (out / path).read_text().startswith("<?xml")

    latex = (out / "table.tex").read_text()
    assert r"nystrom & 51.50 ± 2.12 (2) \\" in latex
    assert rf"{SOFTMAX} & 47.00 (1 of 2; 100 of 12,000 steps) \\" in latex


def test_build_makes_a_page_that_is_escaped_and_self_contained(runs, tmp_path):
    # A finished run has two metrics, and counts once.
    other_metric = {"test_f1": 0.25, "other_floors": {"f1": {"majority class": 0.0}}}
    result = {"device": NASTY, **other_metric}
    runs.add(
        "nystrom,quick",
        0.5,
        result=result,
        attention__num_landmarks=7,
        train__eval_every=25,
    )
    runs.add("linear,quick", 0.5, result=result, train__eval_every=25)
    runs.add("softmax,quick", train__eval_every=25)
    build([runs.folder], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    common = f"preset=quick, train.eval_every=25, device={markupsafe.escape(NASTY)}"
    assert f"2 of 3 runs finished. All of them: {common}, commit=c0ffee." in text
    assert "<script" not in text
    assert re.findall(r'(?:src|href|srcset)="(.{12})', text) == 6 * ["data:image/s"]
    assert not re.search(r"https?:|url\(|@import", text)


def test_build_reports_runs_of_which_none_is_finished(runs, tmp_path):
    runs.add("nystrom,quick", steps=())
    build([runs.folder], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| nystrom | — (0 of 1; 0 of 12,000 steps) |" in text
    # An empty table of costs would have this line.
    assert "|  |" not in text


def test_build_replaces_its_own_report_and_no_other_folder(three, tmp_path):
    out = tmp_path / "out"
    build([three.folder], out)
    three.add("linear,quick", 0.5)
    build([three.folder], out)
    assert "linear" in (out / "report.md").read_text()
    with pytest.raises(ConfigError, match="contains files of something else"):
        build([three.folder], three.folder / "00")


def test_report_command_writes_to_out_or_says_why_not(commands, three, tmp_path):
    done = commands.run("report.py", str(tmp_path / "runs"), f"--out={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"3 of 3 runs finished; see {tmp_path}/out/report.html\n"
    done = commands.run("report.py", str(tmp_path / "none"), f"--out={tmp_path}/new")
    assert f"no runs in {tmp_path}/none: " in refused(done)
    assert not (tmp_path / "new").exists()
    for args in (["gs://b", "--out=o"], [f"{tmp_path}/runs", "--out=gs://b"]):
        done = commands.run("report.py", *args)
        assert "gs://b is not a local or mounted folder" in refused(done)
    by_unknown = "--by=landmarks"
    done = commands.run(
        "report.py", f"{tmp_path}/runs", f"--out={tmp_path}/new", by_unknown
    )
    assert "--by=landmarks: no run has this setting" in refused(done)
    assert not (tmp_path / "new").exists()
    unknown = "--compare_with=softmax,exact"
    done = commands.run(
        "report.py", f"{tmp_path}/runs", f"--out={tmp_path}/new", unknown
    )
    message = "--compare_with=exact: no run has this attention; name one of nystrom, "
    assert message in refused(done)
    assert not (tmp_path / "new").exists()
