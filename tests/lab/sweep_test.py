"""A sweep as a person runs it: interrupted, carried on elsewhere, and misused."""

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from filelock import FileLock

from tests.lab.conftest import ROOT, SMALL

LISTOPS = f"--config={ROOT}/configs/listops.py:nystrom,quick"
TINY = [x for x in SMALL if "num_landmarks" not in x]


@pytest.mark.slow
def test_a_sweep_is_interrupted_moved_carried_on_and_retried(commands):
    folder = commands.folder / "sweep"
    grid = "--grid=attention.name=nystrom,none", "--grid=attention.num_landmarks=4"
    args = [f"--workdir={folder}", LISTOPS, *TINY, *grid]
    one, other = "listops-nystrom-num_landmarks=4-seed0", "listops-none-seed0"

    process = commands.start("sweep.py", *args)
    metrics = folder / one / "metrics.jsonl"
    while not metrics.exists() or not metrics.stat().st_size:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "stopped by SIGINT; saved. The same command again goes on" in out
    assert "stopped by SIGTERM at step" in (folder / one / "log.txt").read_text()
    assert [path.name for path in (folder / other).iterdir()] == ["config.json"]

    moved = commands.folder / "moved"
    folder.rename(moved)
    args[0] = f"--workdir={moved}"
    (moved / other / "failed.json").write_text('{"error": "no data"}')
    done = commands.run("sweep.py", *args)
    assert (done.returncode, done.stderr) == (1, "")
    assert "going on from step" in (moved / one / "log.txt").read_text()
    assert (moved / one / "result.json").exists()
    assert f"{moved / other} failed: no data" in done.stdout

    before = (moved / one / "log.txt").stat().st_mtime_ns
    done = commands.run("sweep.py", *args, "--retry")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 done, 0 running, 0 failed, 0 waiting\n" in done.stdout
    assert (moved / one / "log.txt").stat().st_mtime_ns == before
    assert {*json.loads((moved / "sweep.json").read_text())} == {one, other}


BAD = {
    "": "name a --config, or a --plan: ablations, landmarks",
    f"{LISTOPS} --grid=attention.landmarks=random --plan=table3": "name one of them",
    f"{LISTOPS} --tasks=text": "--tasks is for a --plan",
    f"{LISTOPS} --grid=attention.num_landmark=4": "no point has the key attention.num_",
    f"{LISTOPS} --grid=train.batch_size=many": "invalid literal for int",
    f"{LISTOPS} --grid=attention.num_landmarks=4,100": "num_landmarks=100-seed0: ",
    f"{LISTOPS} --grid=train.batch_size=4,4": "names 4 twice",
    f"{LISTOPS} --grid=train.batch_size=4,8 --config.train.batch_size=2": (
        "train.batch_size is given twice: by --grid and beside it"
    ),
    f"{LISTOPS} --config.train.nope=1": "the config has no key",
    f"{LISTOPS} --seeds=0": "--seeds=0",
    f"{LISTOPS} --max_minutes=0": "--max_minutes=0",
    f"{LISTOPS} --max_minutes=nan": "--max_minutes=nan: must be between 0.001 and",
    f"{LISTOPS} --max_minutes=0.2": "no run is started with less than 0.5 left",
    f"{LISTOPS} --executor=cloud": "value should be one of <local|slurm>",
    f"{LISTOPS} --executor=slurm": "this machine has no sbatch, squeue, sacct, scancel",
    f"{LISTOPS} --gpus=1": "--gpus needs --executor=slurm",
    "--config=configs/no_such.py": "no_such.py",
    "--plan=table4": "value should be one of <ablations|landmarks|",
    "--plan=table3 --tasks=listops,chess": "unknown task 'chess'; known: listops",
    "--plan=table3 --tasks=": "--tasks names none; without it",
    "--plan=table3 --tasks=listops,listops": "--tasks names listops twice",
    "--plan=table3 --preset=slow": "unknown attention or preset 'slow'; known:",
    "--plan=table3 --preset=softmax,quick": "the plan names the attentions itself",
    "--plan=landmarks --grid=attention.num_landmarks=4": "which the plan sets itself",
    "--plan=table3 --plan=table3": "--plan names table3 twice",
    "--plan=landmarks --plan=quick_landmarks --tasks=listops": (
        "two points would be named listops-nystrom-num_landmarks=16-seed0; sweep"
    ),
    f"{LISTOPS} --workdir=RUN": "is a run itself; name a folder for the sweep",
    f"{LISTOPS} --workdir=FOREIGN": "is neither empty nor a sweep",
    f"{LISTOPS} --workdir=BUSY": "another sweep is running in",
    f"{LISTOPS} --workdir=OTHER": "sweep.json is no list of points",
    f"{LISTOPS} --workdir=BROKEN": "config.json is not valid JSON",
    f"{LISTOPS} --workdir=gs://bucket/x": "must be a folder; mount a bucket",
    f"{LISTOPS} --workdir=/dev/null/x": "/dev/null/x: Not a directory",
}

# The imports once, then each misuse in a process of its own.
DRIVER = textwrap.dedent("""
    import json, os, sys
    from scripts import command, sweep
    found = []
    for words in json.loads(sys.argv[1]):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.dup2(writing, 2)
            sys.argv = ["sweep.py", *words]
            command.run(sweep.main)
        os.close(writing)
        message = open(reading).read()
        found.append([os.waitstatus_to_exitcode(os.wait()[1]), message])
    print(json.dumps(found))
""")


@pytest.fixture
def folders(tmp_path):
    """A run, other things, a sweep with a half-written config, one under way."""
    names = ("RUN", "FOREIGN", "OTHER", "BROKEN", "BUSY")
    run, foreign, other, broken, busy = (tmp_path / name for name in names)
    point = broken / "listops-nystrom-seed0"
    for folder in (run, foreign, other, point, busy):
        folder.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (foreign / "thesis.tex").write_text("")
    (other / "sweep.json").write_text("[]")
    (broken / "sweep.json").write_text('{"listops-nystrom-seed0": []}')
    (busy / "sweep.json").write_text("{}")
    (point / "config.json").write_text('{"task": {')
    with FileLock(busy / "sweep.lock"):
        yield tmp_path


def test_bad_input_is_one_line_and_status_2_and_starts_nothing(folders):
    def snapshot():
        return {path: path.stat().st_mtime_ns for path in folders.rglob("*")}

    before = snapshot()
    cases = []
    for words in BAD:
        args = [x.replace("workdir=", f"workdir={folders}/") for x in words.split()]
        args = [x.replace(f"{folders}//dev", "/dev") for x in args]
        cases.append([f"--workdir={folders}/new", *args])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, json.dumps(cases)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for (words, message), (status, said) in zip(BAD.items(), found, strict=True):
        assert message in said, words
        assert (status, said.count("\n")) == (2, 1), (words, said)
        assert said.startswith("error: ")
    assert snapshot() == before


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
