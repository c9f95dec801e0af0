"""Disks that are full or may not be written, and a clock that runs backwards."""

import os
import shutil
import subprocess

import pytest

from tests.small import numbers, result_of

pytestmark = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def disk(tmp_path):
    """A file system in memory of 24 kB; skips the test where none may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def remount(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def refused(done):
    """The one line of a command that could not go on."""
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_no_room_for_the_data(commands, finished, tmp_path, disk):
    ours = commands.with_env(LRA_DATA_DIR=str(disk))
    for kilobytes in (4, 40, 80):
        remount(disk, f"size={kilobytes}k")
        assert str(disk) in refused(ours.train(tmp_path / "run"))
        assert not list(disk.rglob("*.json"))
    remount(disk, "size=9m")
    done = ours.train(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "run") == numbers(finished[0])


@pytest.mark.parametrize("kilobytes", [4, 24, 40])
def test_no_room_in_the_workdir_and_later_there_is(commands, finished, disk, kilobytes):
    """From no room for the config, over metrics and events, to the checkpoints."""
    remount(disk, f"size={kilobytes}k")
    refused(commands.train(disk / "run"))
    assert not (disk / "run" / "result.json").exists()
    remount(disk, "size=50m")
    done = commands.train(disk / "run")
    assert done.returncode == 0, done.stderr
    assert numbers(disk / "run") == numbers(finished[0])


def test_a_workdir_that_may_not_be_written(commands, finished, disk):
    remount(disk, "size=50m")
    shutil.copytree(finished[0], disk / "run")
    remount(disk, "ro")
    assert "Read-only" in refused(commands.train(disk / "new"))
    done = commands.run("evaluate.py", f"--workdir={disk}/run")
    accuracy = result_of(disk / "run")["test_accuracy"]
    assert f"test accuracy {accuracy:.2%}" in done.stdout, done.stderr


# Read by every Python process that finds it: each look at the clock is an hour earlier.
BACKWARDS = """
import itertools
import time

now, hours = time.time, itertools.count()
time.time = lambda: now() - 3600 * next(hours)
"""


def test_a_clock_that_runs_backwards_changes_nothing(commands, finished, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BACKWARDS)
    places = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = commands.with_env(PYTHONPATH=os.pathsep.join(places))
    done = ours.train(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "run") == numbers(finished[0])
