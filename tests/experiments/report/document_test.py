"""The page is whole HTML that needs nothing else, whatever the runs are called."""

import re
from html.parser import HTMLParser

import pytest

from nystromformer.experiments.report.document import texts, to_csv
from tests.experiments.report.conftest import read_frame

VOID = {"meta", "img", "br"}
NASTY = """<script>alert("x")</script> & 'y'"""


class Page(HTMLParser):
    """Holds that every tag is closed by its own, and gathers what is in them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def report(runs, tmp_path):
    """One run with a name and a device that look like markup, and one figure."""
    runs.finished(NASTY.replace("/", ""), 0.57, result={"device": NASTY})
    softmax = runs.unfinished("softmax", arg="softmax,quick")
    (softmax / "failed.json").write_text('{"error": "<KILL>"}')
    svg = tmp_path / "figures" / "listops_curves.svg"
    svg.parent.mkdir()
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    figures = {"listops": {NASTY: svg}}
    return texts(read_frame(runs)[0], figures, {"listops": NASTY}, ["x is left out"])


def test_the_page_is_whole_and_needs_nothing_else(report):
    page = Page(report["report.html"])
    assert "script" not in page.tags
    assert NASTY in page.text
    assert ("alt", NASTY) in page.attributes
    assert ("data-label", "listops accuracy, %") in page.attributes  # on a phone
    links = [v for k, v in page.attributes if k in ("src", "href", "srcset")]
    assert links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert not re.search(r"https?:|url\(|@import", report["report.html"])


def test_the_page_says_what_was_measured_and_what_was_not(report):
    text = Page(report["report.html"]).text
    assert text.strip().startswith("Report: test accuracy on listops")
    for words in (
        "1 of 2 runs finished.",
        "runs/softmax failed: <KILL>",
        f"All rows: quick preset, {NASTY}.",
        "57.00 (1) [a]",
        f"[a] {NASTY}",
        "— (1 failed, 50 of 12,000 steps)",
        f"Commit: {'c' * 40}.",
        "Warning: x is left out",
        "python scripts/train.py --config=configs/listops.py:softmax,quick",
    ):
        assert words in text
    assert "Published" not in text  # beside a quick run


def test_markdown_says_the_same_and_links_the_figures(report):
    text = report["report.md"]
    assert "# Report: test accuracy on listops\n\n1 of 2 runs finished.\n\n" in text
    assert "| nystrom | 57.00 (1) \\[a\\] |" in text
    assert "(figures/listops_curves.svg)" in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_latex_is_a_table_of_booktabs_and_escaped(runs):
    runs.finished("a", 0.5, attention__landmark_padding="padded")
    runs.finished("b", 0.4, seed=1, attention__landmark_padding="padded")
    runs.finished("c", arg="nystrom", result={"device": "A_1 & B"})
    frame, _ = read_frame(runs)
    text = texts(frame, {"listops": {}}, {"listops": "100_%"})["table.tex"]
    for line in (r"\toprule", r"\bottomrule", r"\begin{tabular}{lrr}"):
        assert f"{line}\n" in text
    assert r"attention & listops accuracy, \% & listops published, \% \\" in text
    row = (
        r"nystrom, quick preset, landmark_padding count & 45.00 $\pm$ 7.07 (2) [a] & --"
    )
    assert row in text
    assert not re.search(r"(?<!\\)[%_#]", text)


def test_no_cell_is_a_formula_of_a_spreadsheet():
    text = to_csv([{"a": "=1+1", "b": "-0.50", "c": "@x", "d": None, "e": -3}])
    assert text.splitlines() == ["a,b,c,d,e", "'=1+1,-0.50,'@x,,-3"]
