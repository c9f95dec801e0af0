"""Disks that are full or may not be written, and a clock that runs backwards."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import numbers

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system in memory; skips the test where none may be mounted."""
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def resize(place: Path, options: str) -> None:
    command = ["mount", "-o", f"remount,{options}", str(place)]
    subprocess.run(command, check=True)


def refused(done: subprocess.CompletedProcess) -> str:
    """The one line of a command that could not go on."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("kilobytes", [4, 40, 80])
def test_no_room_for_the_data(commands, expected, tmp_path, kilobytes):
    with mounted(tmp_path / "disk", f"size={kilobytes}k") as disk:
        ours = commands.with_env(LRA_DATA_DIR=str(disk))
        assert str(disk) in refused(ours.train(tmp_path / "run"))
        assert not list(disk.rglob("*.json"))
        resize(disk, "size=9m")
        done = ours.train(tmp_path / "run")
        assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "run") == expected


@pytest.mark.parametrize("kilobytes", [4, 24, 40])
def test_no_room_in_the_workdir_and_later_there_is(
    commands, expected, tmp_path, kilobytes
):
    """From no room for the config, over metrics and events, to the checkpoints."""
    with mounted(tmp_path / "disk", f"size={kilobytes}k") as disk:
        refused(commands.train(disk / "run"))
        assert not (disk / "run" / "result.json").exists()
        resize(disk, "size=50m")
        done = commands.train(disk / "run")
        assert done.returncode == 0, done.stderr
        assert numbers(disk / "run") == expected


def test_no_room_for_the_report(commands, finished, tmp_path):
    with mounted(tmp_path / "disk", "size=100k") as disk:
        out = f"--out={disk}/report"
        refused(commands.run("report.py", str(finished[0]), out))
        assert not list(disk.iterdir())


def test_a_workdir_that_may_not_be_written(commands, finished, expected, tmp_path):
    with mounted(tmp_path / "disk", "size=50m") as disk:
        shutil.copytree(finished[0], disk / "run")
        resize(disk, "ro")
        assert "Read-only" in refused(commands.train(disk / "run"))
        assert "Read-only" in refused(commands.train(disk / "new"))
        done = commands.run("evaluate.py", f"--workdir={disk}/run")
        accuracy = expected["result"]["test_accuracy"]
        assert f"test accuracy {accuracy:.2%}" in done.stdout, done.stderr
        out = f"--out={tmp_path}/report"
        done = commands.run("report.py", str(disk / "run"), out)
        assert done.returncode == 0, done.stderr


# Read by every Python process that finds it: each look at the clock is an hour earlier.
BACKWARDS = """
import itertools
import time

now, hours = time.time, itertools.count()
time.time = lambda: now() - 3600 * next(hours)
"""


def test_a_clock_that_runs_backwards_changes_nothing(commands, expected, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BACKWARDS)
    places = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = commands.with_env(PYTHONPATH=os.pathsep.join(places))
    done = ours.train(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "run") == expected
