"""Flags and folders that cannot be swept: one error, and nothing is written."""

import itertools
from pathlib import Path

import pytest
from filelock import FileLock

from nystromformer.config import ConfigError
from nystromformer.lab.sweep.command import Sweep
from tests.commands import ROOT

LISTOPS = f"{ROOT}/configs/listops.py:nystrom,quick"
NO_FLAGS = {
    "workdir": Path("new"),
    "config": None,
    "changes": {},
    "grid": [],
    "seeds": None,
    "plan": [],
    "preset": None,
    "tasks": None,
    "data_dir": None,
    "executor": "local",
    "max_parallel": None,
    "max_minutes": None,
    "retry": False,
    "dry_run": False,
    "slurm": {"partition": None, "time": None, "gpus": None},
}
# How ml_collections reads a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

GRID, TABLE3 = {"config": LISTOPS}, {"plan": ["table3"]}
BAD = [
    ({}, "name a --config, or a --plan: ablations, landmarks"),
    ({**GRID, **TABLE3}, "name one of them"),
    ({**GRID, "tasks": ["text"]}, "--tasks is for a --plan"),
    ({**GRID, "changes": {"train.nope": 1}}, "no point has the key train.nope"),
    ({**GRID, "max_minutes": 0.2}, "no run is started with less than 0.5 left"),
    ({**GRID, "executor": "slurm"}, "this machine has no sbatch, squeue, sacct"),
    ({**GRID, "slurm": {"partition": None, "gpus": 1}}, "--gpus needs --exec"),
    ({**TABLE3, "tasks": ["listops", "chess"]}, "unknown task 'chess'; known: list"),
    ({**TABLE3, "tasks": []}, "--tasks names none; without it"),
    ({**TABLE3, "tasks": ["listops"] * 2}, "--tasks names listops twice"),
    ({**TABLE3, "preset": "slow"}, "unknown attention or preset 'slow'; known:"),
    ({**TABLE3, "preset": "softmax,quick"}, "the plan names the attentions itself"),
    (
        {"plan": ["landmarks"], "grid": ["attention.num_landmarks=4"]},
        "which the plan sets itself",
    ),
    ({"plan": ["table3"] * 2}, "--plan names table3 twice"),
    (
        {"plan": ["landmarks", "quick_landmarks"], "tasks": ["listops"]},
        "two points would be named listops-",
    ),
    ({**GRID, "workdir": Path("RUN")}, "is a run itself; name a folder for"),
    ({**GRID, "workdir": Path("FOREIGN")}, "is neither empty nor a sweep"),
    ({**GRID, "workdir": Path("BUSY")}, "another sweep is running in"),
    ({**GRID, "workdir": Path("OTHER")}, "sweep.json is no list of points"),
    ({**GRID, "workdir": Path("BROKEN")}, "config.json is not valid JSON"),
]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """A run, other things, a sweep with a half-written config, one under way."""
    files = {
        "RUN/config.json": "{}",
        "FOREIGN/thesis.tex": "",
        "OTHER/sweep.json": "[]",
        "BROKEN/sweep.json": '{"listops-nystrom-seed0": []}',
        "BROKEN/listops-nystrom-seed0/config.json": '{"task": {',
        "BROKEN/listops-nystrom-seed0/best/weights": "",
        "BUSY/sweep.json": "{}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with FileLock(tmp_path / "BUSY" / "sweep.lock"):
        yield tmp_path


def test_what_cannot_be_swept_is_an_error_and_starts_nothing(folders):
    before = {path: path.stat().st_mtime_ns for path in folders.rglob("*")}
    for changes, message in BAD:
        with pytest.raises(ConfigError) as raised:
            Sweep(**{**NO_FLAGS, **changes})()
        assert message in str(raised.value), changes
    assert {x: x.stat().st_mtime_ns for x in folders.rglob("*")} == before


def test_a_plan_is_its_variants_with_what_the_flags_say_instead():
    flags = {"plan": ["table3"], "tasks": ["text", "image"], "seeds": 2}
    points = Sweep(**{**NO_FLAGS, **flags, "preset": "quick", "data_dir": "/x"})
    found = [point.name for point in points.planned()]
    variants = ("nystrom", "softmax", "nystrom-num_landmarks=64", "linformer")
    order = itertools.product((0, 1), variants, ("text", "image"))
    assert found[:8] == [f"{t}-{v}-seed{s}" for s, v, t in itertools.islice(order, 8)]
    assert len(found) == 2 * 2 * 6
    assert {point.config.task.data_dir for point in points.planned()} == {"/x"}
