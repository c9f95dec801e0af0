"""The report as a person asks for it: one command, or one line that says why not."""

from tests.lab.report.conftest import Runs


def test_flags_may_stand_between_the_folders_and_warnings_go_to_stderr(
    commands, tmp_path
):
    runs = Runs(tmp_path)
    one, other = runs.finished("one", 0.5), runs.unfinished("other", seed=1)
    runs.finished("other/double", 0.5)
    out = tmp_path / "out"
    done = commands.run("report.py", str(one), f"--out={out}", str(other))
    assert (done.returncode, done.stdout) == (
        0,
        f"1 of 2 runs finished; see {out}/report.html\n",
    )
    assert done.stderr.startswith("warning: other/double is left out: it has the")
    assert done.stderr.count("\n") == 1
    assert "<title>Report: test accuracy" in (out / "report.html").read_text()


def test_a_remark_on_nothing_is_one_line(commands, tmp_path):
    run = Runs(tmp_path).finished("one")
    out = f"--out={tmp_path}/out"
    done = commands.run("report.py", str(run), out, "--remark=image=JPEG")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no run of image" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
