"""Disks that are full, and a clock that runs backwards."""

import os
import subprocess

import pytest

from tests.small import numbers

rare = [pytest.mark.slow, pytest.mark.faults]


@pytest.fixture
def disk(tmp_path):
    """A file system in memory; skips the test where none may be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def resize(disk, size):
    remount = ["mount", "-o", f"remount,size={size}", str(disk)]
    subprocess.run(remount, check=True)


# No room for the config, for the metrics, for the checkpoints; for the data.
@pytest.mark.parametrize(
    ("data", "size"),
    [
        (False, "40k"),
        *(pytest.param(False, size, marks=rare) for size in ("4k", "24k")),
        *(pytest.param(True, size, marks=rare) for size in ("4k", "16k")),
    ],
)
def test_a_full_disk_is_one_line_and_with_room_the_run_goes_on(
    commands, finished, tmp_path, disk, data, size
):
    ours = commands.with_env(LRA_DATA_DIR=str(disk)) if data else commands
    workdir = tmp_path / "run" if data else disk / "run"
    resize(disk, size)
    done = ours.train(workdir)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert not (workdir / "result.json").exists()
    resize(disk, "50m")
    done = ours.train(workdir)
    assert done.returncode == 0, done.stderr
    assert numbers(workdir) == numbers(finished[0])


# Read by every Python process that finds it: each look at the clock is an hour earlier.
BACKWARDS = """
import itertools
import time

now, hours = time.time, itertools.count()
time.time = lambda: now() - 3600 * next(hours)
"""


@pytest.mark.slow
@pytest.mark.faults
def test_a_clock_that_runs_backwards_changes_nothing(commands, finished, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BACKWARDS)
    places = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ours = commands.with_env(PYTHONPATH=os.pathsep.join(places))
    done = ours.train(tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "run") == numbers(finished[0])
