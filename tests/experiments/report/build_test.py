"""The folder of a report: whole, self-contained, and nobody else's."""

import re

import markupsafe
import pandas as pd
import pytest

from nystromformer.config import ConfigError
from nystromformer.experiments.report.build import build, escape_latex
from tests.commands import refused

NASTY = """<script>alert("x")</script> & 'y'"""


def test_build_writes_pages_tables_and_figures(three, tmp_path):
    three.add("softmax,quick")
    out = tmp_path / "out"
    assert build([three.folder], out) == f"3 of 4 runs finished; see {out}/report.html"
    numbers = pd.read_csv(out / "scores.csv").set_index("label")
    found = list(numbers.loc["nystrom", ["mean", "standard_deviation", "seeds"]])
    assert found == [pytest.approx(51.5), pytest.approx(4.5**0.5), 2]
    assert numbers.at["softmax", "score"] == "47.00 (1 of 2, 100 of 12,000 steps)"
    tests = list(pd.read_csv(out / "runs.csv")["test_accuracy"].dropna())
    assert tests == [0.5, 0.53, 0.47]
    page = (out / "report.html").read_text()
    assert page.count(">81942<") == 3
    assert "nan<" not in page
    text = (out / "report.md").read_text()
    assert "| nystrom | 51.50 ± 2.12 (2) |" in text
    for path in re.findall(r"\]\((figures/.*?)\)", text):
        assert (out / path).read_text().startswith("<?xml")
    latex = (out / "table.tex").read_text()
    assert r"nystrom & 51.50 $\pm$ 2.12 (2) \\" in latex
    assert r"softmax & 47.00 (1 of 2) \\" in latex


def test_build_makes_a_page_that_is_escaped_and_self_contained(runs, tmp_path):
    runs.add("nystrom,quick", 0.5, result={"device": NASTY})
    build([runs.folder], tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text()
    assert f"All rows: quick preset, {markupsafe.escape(NASTY)}, c0ffee." in text
    assert "<script" not in text
    links = re.findall(r'(?:src|href|srcset)="(.{12})', text)
    assert links == 2 * ["data:image/s"]
    assert not re.search(r"https?:|url\(|@import", text)


def test_build_reports_what_is_not_finished_yet(runs, tmp_path):
    runs.add("nystrom,quick", steps=())
    build([runs.folder], tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "0 of 1 runs finished." in text
    assert "| nystrom | — (0 of 12,000 steps) |" in text
    latex = (tmp_path / "out" / "table.tex").read_text()
    assert r"nystrom & -- (0 of 12,000 steps) \\" in latex


def test_build_replaces_its_own_report_and_no_other_folder(three, tmp_path):
    out, thesis = tmp_path / "out", tmp_path / "thesis" / "report.md"
    build([three.folder], out)
    (out / "notes.txt").write_text("mine")
    three.add("linear,quick", 0.5)
    build([three.folder], out)
    assert "linear" in (out / "report.md").read_text()
    assert (out / "notes.txt").read_text() == "mine"
    thesis.parent.mkdir()
    thesis.write_text("What I think of it.")
    for taken in (thesis.parent, three.folder / "00"):
        with pytest.raises(ConfigError, match=f"--out={taken} "):
            build([three.folder], taken)
    assert thesis.read_text() == "What I think of it."


def test_escape_latex_escapes_each_special_character():
    escaped = r"\textbackslash{}a\_b \^{} \~{} 5\% \& \# \$ \{\}"
    assert escape_latex(r"\a_b ^ ~ 5% & # $ {}") == escaped


def test_report_command_writes_to_out_or_says_why_not(commands, three, tmp_path):
    done = commands.run("report.py", str(tmp_path / "runs"), f"--out={tmp_path}/out")
    said = f"3 of 3 runs finished; see {tmp_path}/out/report.html\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
    done = commands.run("report.py", str(tmp_path / "none"), f"--out={tmp_path}/new")
    assert "no runs there" in refused(done)
    assert not (tmp_path / "new").exists()
