"""The report as a person asks for it: one command, or one line that says why not."""

import pytest

from tests.lab.report.conftest import Runs


def test_flags_may_stand_between_the_folders(commands, tmp_path):
    runs = Runs(tmp_path)
    one, other = runs.finished("one"), runs.unfinished("other", seed=1)
    done = commands.run("report.py", str(one), f"--out={tmp_path}/out", str(other))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1 of 2 runs finished; see {tmp_path}/out/report.html\n"
    assert "<title>Report</title>" in (tmp_path / "out" / "report.html").read_text()


def test_what_is_no_run_is_one_line(commands, tmp_path):
    done = commands.run("report.py", str(tmp_path), f"--out={tmp_path}/out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path} holds no run of scripts/train.py")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("remark", "text"),
    [("image=JPEG", "there is no run of image"), ("listops", "is not TASK=TEXT")],
)
def test_a_remark_on_nothing_is_one_line(commands, tmp_path, remark, text):
    run = Runs(tmp_path).finished("one")
    out = f"--out={tmp_path}/out"
    done = commands.run("report.py", str(run), out, f"--remark={remark}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert text in done.stderr
    assert not (tmp_path / "out").exists()
