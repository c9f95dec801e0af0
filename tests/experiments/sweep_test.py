"""A sweep as a person runs it: interrupted, carried on elsewhere, and misused."""

import json
import shlex
import signal
import subprocess
import time

import pytest

from tests.commands import ROOT
from tests.small import SMALL

LISTOPS = f"--config={ROOT}/configs/listops.py:nystrom,quick"
TINY = [x for x in SMALL if "num_landmarks" not in x]


@pytest.mark.slow
def test_a_sweep_is_interrupted_moved_carried_on_and_retried(commands):
    folder = commands.folder / "sweep"
    grid = "--grid=attention.name=nystrom,identity", "--grid=attention.num_landmarks=4"
    args = [f"--workdir={folder}", LISTOPS, *TINY, *grid]
    one, other = "listops-nystrom-num_landmarks=4-seed0", "listops-identity-seed0"

    process = commands.start("sweep.py", *args)
    metrics = folder / one / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "stopped by SIGINT; saved. Run the same command again" in out
    assert "stopped by SIGTERM at step" in (folder / one / "log.txt").read_text()
    assert [path.name for path in (folder / other).iterdir()] == ["config.json"]

    moved = commands.folder / "moved"
    folder.rename(moved)
    args[0] = f"--workdir={moved}"
    (moved / other / "failed.json").write_text('{"error": "no data"}')
    done = commands.run("sweep.py", *args)
    assert (done.returncode, done.stderr) == (1, "")
    assert "resuming from step" in (moved / one / "log.txt").read_text()
    assert (moved / one / "result.json").exists()
    assert f"{moved / other} failed: no data" in done.stdout

    before = (moved / one / "log.txt").stat().st_mtime_ns
    done = commands.run("sweep.py", *args, "--retry")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 done, 0 running, 0 failed, 0 waiting\n" in done.stdout
    assert (moved / one / "log.txt").stat().st_mtime_ns == before
    assert {*json.loads((moved / "sweep.json").read_text())} == {one, other}


def test_bad_input_is_one_line_and_status_2_and_starts_nothing(commands, tmp_path):
    (tmp_path / "thesis.tex").touch()
    done = commands.run("sweep.py", f"--workdir={tmp_path}", LISTOPS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {tmp_path} is neither empty nor a sweep: name another folder\n"
    )
    done = commands.run("sweep.py", f"--workdir={tmp_path}/x", "--plan=table4")
    assert done.returncode == 2
    assert "value should be one of <ablations|as_published|" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_dry_run_prints_commands_that_can_be_copied(tmp_path, commands):
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "sweep.lock").touch()  # of a sweep that was killed before it began
    args = LISTOPS, "--grid=attention.num_landmarks=4,8", "--seeds=2", "--dry_run"
    done = commands.run("sweep.py", f"--workdir={folder}", *args)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert [path.name for path in folder.iterdir()] == ["sweep.lock"]
    checked = subprocess.run(f"{lines[2]} --only_check_args", shell=True, check=False)
    assert checked.returncode == 0
    workdir = folder / "listops-nystrom-num_landmarks=4-seed1"
    assert shlex.split(lines[2])[-1] == f"--workdir={workdir}"
