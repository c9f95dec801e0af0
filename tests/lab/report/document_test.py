"""The page is whole HTML that needs nothing else, whatever the runs are called."""

import re
from html.parser import HTMLParser

import pytest

from nystromformer.lab.report.document import Report
from nystromformer.lab.report.frame import make_frame
from nystromformer.lab.report.runs import read_runs

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


def make_report(runs, figures=None, **kwargs):
    frame, _ = make_frame(read_runs([runs.folder])[0])
    return Report.of(frame, figures or {"listops": {}}, **kwargs)


@pytest.fixture
def report(runs, tmp_path):
    """One run with a name and a device that look like markup, and one figure."""
    runs.finished(NASTY.replace("/", ""), 0.57, result={"device": NASTY})
    runs.unfinished("softmax", arg="softmax,quick")
    svg = tmp_path / "figures" / "listops_curves.svg"
    svg.parent.mkdir()
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    remarks, warnings = {"listops": NASTY}, ["x is left out"]
    figures = {"listops": {NASTY: svg}}
    return make_report(runs, figures, remarks=remarks, warnings=warnings)


def test_every_tag_is_closed_and_every_text_escaped(report):
    page = Page(report.html())
    assert "script" not in page.tags
    assert NASTY in page.text
    assert ("alt", NASTY) in page.attributes
    with pytest.raises(AssertionError):  # the parser of this test sees what is open
        Page("<ul><li>one</ul>")


def test_nothing_comes_from_elsewhere(report):
    text = report.html()
    links = [v for k, v in Page(text).attributes if k in ("src", "href", "srcset")]
    assert links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert not re.search(r"https?:|url\(|@import", text)


def test_the_page_says_what_was_measured_and_what_was_not(report):
    text = Page(report.html()).text
    assert text.strip().startswith("Report: test accuracy on listops")
    for words in (
        "1 of 2 runs finished.",
        f"All rows: quick preset, {NASTY}.",
        "57.00 (1) [a]",
        f"[a] {NASTY}",
        "— (50 of 5,000 steps)",
        f"Commit: {'c' * 40}.",
        "Warning: x is left out",
        "python scripts/train.py --config=configs/listops.py:softmax,quick",
    ):
        assert words in text
    assert "Published" not in text  # beside a quick run


def test_a_cell_on_a_phone_says_its_column(report):
    attributes = Page(report.html()).attributes
    assert ("content", "width=device-width, initial-scale=1") in attributes
    assert ("data-label", "listops accuracy, %") in attributes


def test_markdown_says_the_same_and_links_the_figures(report):
    text = report.markdown()
    assert "# Report: test accuracy on listops\n\n1 of 2 runs finished.\n\n" in text
    assert "| nystrom | 57.00 (1) \\[a\\] |" in text
    assert "(figures/listops_curves.svg)" in text
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_latex_is_a_table_of_booktabs_and_escaped(runs):
    runs.finished("a", 0.5, attention__segments="padded")
    runs.finished("b", 0.4, seed=1, attention__segments="padded")
    runs.finished("c", arg="nystrom", result={"device": "A_1 & B"})
    text = make_report(runs, remarks={"listops": "100_%"}).latex()
    for line in (r"\toprule", r"\bottomrule", r"\begin{tabular}{lrr}"):
        assert f"{line}\n" in text
    assert r"attention & listops accuracy, \% & listops published, \% \\" in text
    assert (
        r"nystrom, quick preset, segments padded & 45.00 $\pm$ 7.07 (2) [a] & --"
        in text
    )
    assert not re.search(r"(?<!\\)[%_#]", text)


def test_runs_that_are_all_on_their_way_have_a_page_too(runs):
    (runs.unfinished("a", steps=()) / "failed.json").write_text('{"error": "<KILL>"}')
    report = make_report(runs)
    text = Page(report.html()).text
    assert "0 of 1 runs finished." in text
    assert "— (1 failed, 0 of 5,000 steps)" in text
    assert "runs/a failed: <KILL>" in text
    assert "Commit" not in text
