"""The report as a person asks for it: one command, or one line that says why not."""

from tests.commands import refused
from tests.experiments.report.conftest import Runs


def test_the_page_goes_to_out_warnings_to_stderr_and_errors_are_one_line(
    commands, tmp_path
):
    runs, out = Runs(tmp_path), tmp_path / "out"
    args = [str(runs.finished("one", 0.5)), f"--out={out}"]
    args.append(str(runs.unfinished("other", seed=1)))
    runs.finished("other/double", 0.5)
    done = commands.run("report.py", *args, "--remark=image=JPEG")
    assert "there is no run of image" in refused(done)
    assert done.stdout == ""
    assert not out.exists()
    done = commands.run("report.py", *args)
    said = f"1 of 2 runs finished; see {out}/report.html\n"
    assert (done.returncode, done.stdout) == (0, said)
    assert done.stderr.startswith("warning: other/double is left out: it has the")
    assert done.stderr.count("\n") == 1
    assert "<title>Report: test accuracy" in (out / "report.html").read_text()
