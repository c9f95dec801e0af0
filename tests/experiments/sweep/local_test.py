"""Points on this machine: how many at a time, on which device, and how they stop."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep import local
from nystromformer.experiments.sweep.local import accelerators, run_locally
from nystromformer.experiments.sweep.process import failure
from nystromformer.experiments.sweep.status import state
from nystromformer.training.interrupt import Interrupted
from tests.experiments.sweep.conftest import FINISH, LONG

TIMED = f"""
import time
started = time.time()
time.sleep(0.4)
{FINISH}
with open(os.path.join(workdir, "times"), "w") as file:
    print(started, time.time(), os.environ["CUDA_VISIBLE_DEVICES"] or "-", file=file)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(local, "SECONDS_BETWEEN_LOOKS", 0.02)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def run(points, folder, status, max_parallel=None, ends=None):
    run_locally(points, folder, status(points), max_parallel, ends)


def intervals(points, folder):
    """When each ran, and what it saw of the accelerators."""
    found = []
    for point in points:
        start, end, device = (folder / point.name / "times").read_text().split()
        found.append((float(start), float(end), device))
    return found


def most_at_a_time(times) -> int:
    return max(sum(a <= start < b for a, b, _ in times) for start, _, _ in times)


def test_a_point_begins_when_its_source_has_ended_well_or_not(stub, status, tmp_path):
    points = [stub(name, TIMED, source=name.upper()) for name in "ab"]
    points += [stub("A", TIMED), stub("B", "raise SystemExit('error: no data')")]
    run(points, tmp_path, status, 4)
    assert failure(tmp_path / "B") == "error: no data"
    times = dict(zip("abA", intervals(points[:3], tmp_path), strict=True))
    assert times["a"][0] > times["A"][1]


@pytest.mark.parametrize(("max_parallel", "most"), [(None, 1), (2, 2)])
def test_no_more_run_at_a_time_than_there_are_places(
    stub, status, tmp_path, max_parallel, most
):
    points = [stub("a", "raise SystemExit('error: no data')")]
    points += [stub(name, TIMED) for name in "bcde"]
    run(points, tmp_path, status, max_parallel)
    assert failure(tmp_path / "a") == "error: no data"  # and holds up no other
    times = intervals(points[1:], tmp_path)
    assert most_at_a_time(times) == most
    starts = [start for start, _, _ in times]  # of two at once either may be first
    assert all(a < b for a, b in zip(starts, starts[most:], strict=False))


def test_each_accelerator_has_one_run(stub, status, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    points = [stub(name, TIMED) for name in "abcd"]
    run(points, tmp_path, status)
    times = intervals(points, tmp_path)
    assert most_at_a_time(times) == 2
    for device in ("3", "GPU-5"):
        assert most_at_a_time([x for x in times if x[2] == device]) == 1
    assert {device for _, _, device in times} == {"3", "GPU-5"}


def test_accelerators_are_those_that_are_visible_or_listed(monkeypatch, tmp_path):
    assert accelerators() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A'\necho '  MIG 1g'\necho 'GPU 1: A'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert accelerators() == ["0", "1"]


def test_a_signal_lets_the_running_save_and_starts_no_other(stub, status, tmp_path):
    def interrupt():
        while not all((tmp_path / name / "started").exists() for name in "ab"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="stopped by SIGINT"):
        run([stub(name, LONG) for name in "abc"], tmp_path, status, max_parallel=2)
    thread.join()
    assert all((tmp_path / name / "saved").exists() for name in "ab")
    assert not (tmp_path / "c").exists()
    assert {state(tmp_path / name) for name in "abc"} == {"waiting"}


def test_the_time_is_shared_and_starts_no_run_at_its_end(
    stub, status, tmp_path, monkeypatch
):
    monkeypatch.setattr(local, "LEAST_MINUTES", 0.999)
    lines = f"import sys, time; time.sleep(0.3); print(sys.argv[1:]); {FINISH}"
    points = [stub(name, lines) for name in "ab"]
    with pytest.raises(Interrupted, match="its time limit"):
        run(points, tmp_path, status, ends=time.monotonic() + 60.06)
    assert state(tmp_path / "a") == "done"
    (limit,) = eval((tmp_path / "a" / "log.txt").read_text())
    assert 0.999 < float(limit.removeprefix("--max_minutes=")) <= 1.001
    assert not (tmp_path / "b").exists()
    with pytest.raises(ConfigError, match="too little to start a run"):
        run(points, tmp_path, status, ends=time.monotonic() + 50)


def test_an_error_of_the_sweep_leaves_no_run_behind(
    stub, status, tmp_path, monkeypatch
):
    line = status([stub("a", LONG)])

    def show(running):
        if (tmp_path / "a" / "started").exists():
            raise OSError("disk full")

    monkeypatch.setattr(line, "show", show)
    with pytest.raises(OSError, match="disk full"):
        run_locally(line.points, tmp_path, line, None, None)
    assert (tmp_path / "a" / "saved").exists()


def test_a_point_that_another_process_trains_waits_for_its_end(stub, status, tmp_path):
    (tmp_path / "a").mkdir()
    lock = FileLock(tmp_path / "a" / "lock", thread_local=False)
    lock.acquire()
    points = [stub("a", TIMED), stub("b", TIMED)]
    thread = threading.Timer(2.0, lock.release)
    thread.start()
    run(points, tmp_path, status)
    thread.join()
    (first, *_), (second, *_) = intervals(points[::-1], tmp_path)
    assert first < second  # b before a


def test_after_a_kill_of_the_sweep_its_run_saves_and_ends(stub, tmp_path):
    """As the kernel or a person does it: nothing is told, nothing cleaned up."""
    program = stub("a", LONG).command(tmp_path)
    sweep = f"""
import os, pathlib, time
from nystromformer.experiments.sweep.process import Process
Process({program!r}, pathlib.Path({str(tmp_path / "a")!r}), os.environ)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", sweep]) as parent:
        while not (tmp_path / "a" / "started").exists():
            time.sleep(0.05)
        parent.kill()
    ends = time.monotonic() + 20
    while not (tmp_path / "a" / "saved").exists():
        assert time.monotonic() < ends
        time.sleep(0.05)
