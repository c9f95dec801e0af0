"""Starts as the script takes them, in turns, of a small run."""

import json

import pytest

from tests.lab.conftest import SMALL

CHANGES = [f"--change={flag.removeprefix('--config.')}" for flag in SMALL]


@pytest.mark.slow
def test_every_start_is_in_the_file_and_the_table(commands, tmp_path):
    arguments = ("--task=listops", "--rounds=2", *CHANGES)
    done = commands.run("first_step.py", f"--out={tmp_path}", *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "first_step.json").read_text())
    [row] = results["rows"]
    assert (row["task"], row["attention"]) == ("listops", "nystrom")
    assert len(row["cold"]) == len(row["warm"]) == 2
    median = sum(row["cold"]) / 2
    page = (tmp_path / "README.md").read_text()
    for text in (page, done.stdout):
        assert f"| listops, nystrom | {median:.1f} (" in text
    assert results["command"] in page


def test_a_run_that_does_not_start_is_one_line(commands, tmp_path):
    change = "--change=train.no_such=1"
    done = commands.run("first_step.py", f"--out={tmp_path}", change)
    assert done.returncode == 2
    assert done.stderr == "error: the config has no key no_such; its file lists them\n"
    assert not [*tmp_path.iterdir()]
