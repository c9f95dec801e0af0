"""A report takes the place of an earlier one, and of nothing else."""

import pytest

from nystromformer.config import ConfigError
from nystromformer.lab.report.output import check_output, replacing
from nystromformer.lab.report.runs import read_runs


def write(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the old {name}")


def listing(folder):
    return sorted(str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file())


def test_a_new_folder_and_an_earlier_report_are_taken(runs, tmp_path):
    runs.unfinished("a")
    found = read_runs([runs.folder])
    check_output(tmp_path / "new" / "report", found)
    check_output(runs.folder / "report", found)  # beside the runs, in none of them
    write(tmp_path / "old", "report.html", "runs.csv", "figures/text_curves_loss.svg")
    check_output(tmp_path / "old", found)


@pytest.mark.parametrize("name", ["notes.txt", "figures/mine.pdf", "figures/a/b.png"])
def test_a_folder_with_anything_else_is_refused(runs, tmp_path, name):
    write(tmp_path / "old", "report.html", name)
    with pytest.raises(ConfigError, match=r"--out=.*old holds .*, which is no part"):
        check_output(tmp_path / "old", [])


def test_a_run_a_folder_of_runs_and_a_file_are_refused(runs, tmp_path):
    workdir = runs.unfinished("a")
    found = read_runs([runs.folder])
    write(tmp_path, "file")
    for path, message in [
        (workdir, "lies in the run"),
        (workdir / "report", "lies in the run"),
        (runs.folder, "holds a, which is no part of a report"),
        (tmp_path / "file", "is a file"),
    ]:
        with pytest.raises(ConfigError, match=message):
            check_output(path, found)


def test_the_new_takes_the_place_of_the_old_at_the_end(tmp_path):
    write(tmp_path / "out", "report.md", "figures/old.svg")
    with replacing(tmp_path / "out") as folder:
        write(folder, "report.html")
        assert listing(tmp_path / "out") == ["figures/old.svg", "report.md"]
    assert listing(tmp_path) == ["out/report.html"]


def half_write(out, error):
    with replacing(out) as folder:
        write(folder, "report.html")
        raise error


@pytest.mark.parametrize("error", [OSError, SystemExit])
def test_after_an_error_the_old_is_as_it_was(tmp_path, error):
    write(tmp_path / "out", "report.md")
    with pytest.raises(error):
        half_write(tmp_path / "out", error)
    assert listing(tmp_path) == ["out/report.md"]


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path):
    write(tmp_path, "file")
    with (
        pytest.raises(
            ConfigError, match=r"--out=.*report cannot be written: Not a dir"
        ),
        replacing(tmp_path / "file" / "report"),
    ):
        pass
