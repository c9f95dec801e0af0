"""The page is whole HTML that needs nothing else, whatever the runs are called."""

import re
from html.parser import HTMLParser

import pytest

from nystromformer.lab.report.page import Report
from nystromformer.lab.report.points import group
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


@pytest.fixture
def report(runs, tmp_path):
    """One run with a name and a device that look like markup, and one figure."""
    name = NASTY.replace("/", "")
    runs.finished(name, 0.57, result={"device": NASTY})
    runs.unfinished("softmax", arg="softmax,quick")
    svg = tmp_path / "figures" / "listops_curves.svg"
    svg.parent.mkdir()
    svg.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    points = group(read_runs([runs.folder]))
    return Report.of(points, {"listops": {NASTY: svg}})


def test_a_remark_stands_below_the_table_and_in_both_pages(runs):
    runs.finished("one", 0.5)
    points = group(read_runs([runs.folder]))
    report = Report.of(points, {}, {"listops": NASTY})
    assert report.notes[-1] == f"[a] {NASTY}"
    assert "50.00 (1) [a]" in Page(report.html()).text
    assert NASTY in Page(report.html()).text
    assert "50.00 (1) \\[a\\]" in report.markdown()


def test_every_tag_is_closed_and_every_text_escaped(report):
    page = Page(report.html())
    assert "script" not in page.tags
    assert NASTY in page.text
    assert ("alt", NASTY) in page.attributes


def test_the_parser_of_this_test_sees_what_is_not_closed():
    with pytest.raises(AssertionError):
        Page("<ul><li>one</ul>")
    with pytest.raises(AssertionError):
        Page("<p>one")


def test_nothing_comes_from_elsewhere(report):
    text = report.html()
    links = [v for k, v in Page(text).attributes if k in ("src", "href", "srcset")]
    assert links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in links)
    assert not re.search(r"https?:|url\(|@import", text)


def test_a_phone_shows_it_at_its_own_width(report):
    page = Page(report.html())
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    tables = page.tags.count("table")
    assert tables == 2
    assert page.attributes.count(("class", "scroll")) == tables


def test_the_page_says_what_was_measured_and_what_was_not(report):
    text = Page(report.html()).text
    assert "1 of 2 runs finished." in text
    assert "57.00 (1)" in text
    assert "— (50 of 5,000 steps)" in text
    assert f"Commit: {'c' * 40}." in text
    assert "Published: measured by others" in text
    assert "python scripts/train.py --config=configs/listops.py:softmax,quick" in text


def test_markdown_says_the_same_and_links_the_figures(report):
    text = report.markdown()
    assert "| nystrom | 57.00 (1) |" in text
    assert "(figures/listops_curves.svg)" in text
    for words in report.summary:
        assert words in text


def test_runs_that_are_all_on_their_way_have_a_page_too(runs):
    runs.unfinished("a", steps=())
    report = Report.of(group(read_runs([runs.folder])), {"listops": {}})
    text = Page(report.html()).text
    assert "0 of 1 runs finished." in text
    assert "— (0 of 5,000 steps)" in text
    assert "Commit" not in text


def test_why_a_run_failed_stands_in_the_summary(runs):
    (runs.unfinished("a") / "failed.json").write_text(
        '{"error": "killed by <SIGKILL>"}'
    )
    report = Report.of(group(read_runs([runs.folder])), {})
    assert "runs/a failed: killed by <SIGKILL>" in report.summary
    assert "runs/a failed: killed by &lt;SIGKILL&gt;" in report.html()
