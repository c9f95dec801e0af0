"""The folder of a report: its page, records and scores; and the pages of results/."""

import re

import pandas as pd
import pytest

from nystromformer.errors import ConfigError
from nystromformer.experiments.report.records import read_records
from nystromformer.experiments.report.report_page import fill_blocks, write_report
from nystromformer.experiments.report.runs import make_frame
from tests.commands import ROOT, refused
from tests.experiments.report.conftest import SOFTMAX

PAGE = """# Mine

Words that stay.

<!-- report: scores runs={runs} -->
| a table | of old |
<!-- end of report -->

More | words | that stay.
"""
FOLDERS = sorted(path.parent for path in (ROOT / "results").rglob("runs.jsonl"))


def read_page(folder):
    return (folder / "README.md").read_text()


def test_write_report_writes_a_page_tables_and_figures(three, tmp_path):
    three.add("softmax,quick")
    out = tmp_path / "out"
    done = write_report([three.folder], out)
    assert done == f"3 of 4 runs are finished; see {out}/README.md"
    numbers = pd.read_csv(out / "scores.csv").set_index("label")
    nystrom = numbers.loc["nystrom"]
    assert nystrom["mean"] == pytest.approx(51.5)
    assert nystrom["std"] == pytest.approx(4.5**0.5)
    assert nystrom["count"] == 2

    page = read_page(out)
    assert "| nystrom | 51.50 ± 2.12 (2) |" in page
    assert f"| {SOFTMAX} | 47.00 (1 of 2; 100 of 12,000 steps) |" in page
    text = " ".join(page.split())  # in one line
    assert (
        "All have preset=quick. Scores are of 2,000 test examples. "
        "Commit: c0ffee (3: nystrom, softmax); not recorded (1: softmax). "
    ) in text
    assert "this test noise may still come from the seed" in text
    assert "a machine that other work may have shared" in text
    assert "Exact by length" not in text  # No attention here counts such examples.
    assert "one comparison in twenty" not in text  # None is of several seeds.
    assert str(tmp_path) not in text
    prose = [line for line in page.split("\n") if not line.startswith("|")]
    assert max(map(len, prose)) <= 100
    figures = re.findall(r"\]\((.*?)\)", page)
    assert figures == [
        "listops_speed_accuracy.svg",
        "listops_memory_accuracy.svg",
        "listops_curves_accuracy.svg",
        "listops_curves_train_loss.svg",
    ]
    for name in figures:
        assert (out / name).read_text().startswith("<?xml")


def test_write_report_of_runs_of_which_none_is_finished(runs, tmp_path):
    runs.add("nystrom,quick", steps=())
    write_report([runs.folder], tmp_path / "out")
    text = read_page(tmp_path / "out")
    assert "| nystrom | — (0 of 1; 0 of 12,000 steps) |" in text
    # An empty table of costs would have this line.
    assert "|  |" not in text


def test_write_report_counts_the_runs_that_have_failed_and_says_why(three, tmp_path):
    for seed in (5, 6):
        workdir = three.add("softmax,quick", seed=seed, steps=())
        (workdir / "failed.txt").write_text("status 2: error: no data.")
    three.add("softmax,quick", seed=7)
    # This run has failed once, and was finished by hand.
    (three.folder / "00/failed.txt").write_text("status 1: killed")
    out = tmp_path / "out"
    name = f"{three.folder.name}/03"
    counts = f"3 of 6 runs are finished, 2 failed; {name}: status 2: error: no data"
    assert write_report([three.folder], out) == f"{counts}; see {out}/README.md"
    assert f"{counts}." in " ".join(read_page(out).split())
    assert " (1 of 4, 2 failed; 0, 0, 100 of 12,000 steps) |" in read_page(out)
    page = read_page(out)
    write_report([out], out)  # from the records alone
    assert read_page(out) == page


def test_write_report_replaces_its_own_blocks_and_no_other_folder(three, tmp_path):
    out = tmp_path / "out"
    write_report([three.folder], out)
    (out / "README.md").write_text(PAGE.format(runs="*"))
    other_rate = {"other_floors": {"sop_accuracy": {}}, "test_sop_accuracy": 0.7}
    three.add("linear,quick", 0.5, result=other_rate)
    write_report([three.folder, out], out)
    scores = pd.read_csv(out / "scores.csv").set_index(["label", "metric"])["mean"]
    assert scores["linear"].to_dict() == {"accuracy": 50, "sop_accuracy": 70}
    with pytest.raises(ConfigError, match="records of 4 other runs, the first"):
        write_report([three.folder / "03"], out)
    text = read_page(out)
    assert "| linear | 50.00 (1) |" in text
    assert text.endswith("\nMore | words | that stay.\n")
    # It is the same again without the workdirs.
    write_report([out], out)
    assert read_page(out) == text

    (out / "README.md").write_bytes("Wörter".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"README\.md is not UTF-8 text \(invalid"):
        write_report([out], out)

    with pytest.raises(ConfigError, match="contains files of something else"):
        write_report([three.folder], three.folder / "00")
    with pytest.raises(ConfigError, match="--compare_with is for a new page; in "):
        write_report([out], out, ["softmax"])


def test_fill_blocks_selects_runs_by_their_names(three):
    records = read_records([three.folder])
    text, _ = fill_blocks(PAGE.format(runs="*/00,*/02"), records)
    start, table, end = re.split("<!-- .* -->\n", text)
    assert start == "# Mine\n\nWords that stay.\n\n"
    assert end == "\nMore | words | that stay.\n"
    assert "| nystrom | 50.00 (1) |" in table
    assert "a table" not in table


def test_a_page_says_a_note_once(three):
    page = PAGE.format(runs="*/00,*/02") + PAGE.format(runs="*/01")
    text, _ = fill_blocks(page, read_records([three.folder]))
    assert text.count("Mean ± standard deviation over seeds") == 1
    assert text.count("Commit: c0ffee.") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAGE.format(runs="x/*"), "no run has a name like x/*"),
        (PAGE.format(runs="* by=seed"), "unknown option by; known: runs=, from="),
        (PAGE.replace("scores runs={runs}", "table"), "unknown kind table; known: "),
        (PAGE.replace("<!-- end of report -->", ""), "has no line <!-- end of report"),
        (PAGE.split("<!-- end")[0] + PAGE, "has no line <!-- end of report"),
    ],
)
def test_fill_blocks_says_what_is_wrong_with_a_block(three, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        fill_blocks(text.replace("{runs}", "*"), read_records([three.folder]))


def test_report_command_writes_to_out_or_says_why_not(commands, three, tmp_path):
    done = commands.run("report.py", str(tmp_path / "runs"), f"--out={tmp_path}/out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"3 of 3 runs are finished; see {tmp_path}/out/README.md\n"
    done = commands.run("report.py", str(tmp_path / "none"), f"--out={tmp_path}/new")
    assert f"no runs in {tmp_path}/none: " in refused(done)
    assert not (tmp_path / "new").exists()
    for args in (["gs://b", "--out=o"], [f"{tmp_path}/runs", "--out=gs://b"]):
        done = commands.run("report.py", *args)
        assert "gs://b is not a local or mounted folder" in refused(done)
    unknown = "--compare_with=softmax,exact"
    done = commands.run(
        "report.py", f"{tmp_path}/runs", f"--out={tmp_path}/new", unknown
    )
    message = "differences from exact: no run has this attention; name one of nystrom, "
    assert message in refused(done)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_results_have_the_tables_of_their_records(folder):
    """No number between the marks is copied: the command of the page writes it."""
    page = read_page(folder)
    assert "<!-- report: " in page
    text, figures = fill_blocks(page, read_records([folder]))
    assert text == page
    for name in figures:
        assert (folder / name).exists()


def test_results_can_be_reported_together():
    results = ROOT / "results"
    frame = make_frame(read_records([results]))
    topics = {folder.relative_to(results).parts[0] for folder in FOLDERS}
    assert set(frame["run"].str.partition("/")[0]) == topics
