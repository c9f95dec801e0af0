"""Flags and folders that cannot be swept: one error, and nothing is written."""

import itertools
import re
from types import SimpleNamespace

import pytest
from filelock import FileLock

from nystromformer.config import ConfigError
from nystromformer.experiments.sweep.command import find_points, sweep
from tests.commands import ROOT

# How ml_collections reads a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

LISTOPS = f"{ROOT}/configs/listops.py:nystrom,quick"
NO_FLAGS = {
    **{"workdir": "new", "grid": [], "plan": [], "executor": "local"},
    **{"retry": False, "dry_run": False},
    **dict.fromkeys(("seeds", "preset", "tasks", "data_dir", "max_parallel")),
    **dict.fromkeys(("max_minutes", "partition", "time", "gpus")),
}
TABLE3 = {"config": None, "plan": ["table3"]}
BAD = [
    ({"config": None}, "give a --config or a --plan: ablations, "),
    ({"plan": ["table3"]}, "not both"),
    ({"tasks": ["text"]}, "--tasks needs a --plan"),
    ({"executor": "slurm"}, "this machine has no sbatch, squeue, sacct"),
    ({"gpus": 1}, "--gpus needs --executor=slurm"),
    ({**TABLE3, "tasks": ["listops", "chess"]}, "unknown task 'chess'; known: list"),
    ({**TABLE3, "preset": "softmax,quick"}, "the plan already names the attentions"),
    ({**TABLE3, "grid": ["attention.num_landmarks=4"]}, "which the plan already sets"),
    (
        {**TABLE3, "plan": ["landmarks", "quick"], "tasks": ["listops"]},
        "two points would be named listops-",
    ),
    ({"workdir": "FOREIGN"}, "is neither empty nor a sweep"),
    ({"workdir": "BUSY"}, "another sweep is running in"),
    ({"workdir": "BROKEN"}, "config.json is not valid JSON"),
]


def test_what_cannot_be_swept_is_an_error_and_starts_nothing(tmp_path, monkeypatch):
    files = {
        "FOREIGN/thesis.tex": "",
        "BROKEN/sweep.json": '{"listops-nystrom-seed0": []}',
        "BROKEN/listops-nystrom-seed0/config.json": '{"task": {',
        "BROKEN/listops-nystrom-seed0/best/20.safetensors": "",
        "BUSY/sweep.json": "{}",
        "BUSY/sweep.lock": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with FileLock(tmp_path / "BUSY" / "sweep.lock"):
        for changes, message in BAD:
            asked = {**NO_FLAGS, "config": LISTOPS, **changes}
            with pytest.raises(ConfigError) as raised:
                sweep(SimpleNamespace(**asked), asked["config"], {})
            assert message in str(raised.value), changes
    assert {x: x.stat().st_mtime_ns for x in tmp_path.rglob("*")} == before


def test_a_damaged_point_does_not_keep_the_others_from_running(tmp_path, capsys):
    broken = tmp_path / "listops-identity-seed0" / "result.json"
    broken.parent.mkdir()
    broken.write_text("{")
    (tmp_path / "sweep.json").write_text('{"listops-identity-seed0": []}')
    changes = {"workdir": str(tmp_path), "dry_run": True}
    changes["grid"] = ["attention.name=identity,linear"]
    assert sweep(SimpleNamespace(**{**NO_FLAGS, **changes}), LISTOPS, {})
    out, err = capsys.readouterr()
    assert re.fullmatch(r".*/listops-linear-seed0\n", out)
    assert err.startswith("warning: listops-identity-seed0 is skipped: ")


def test_a_point_whose_source_is_not_swept_does_not_wait_for_it(tmp_path, capsys):
    changes = {"workdir": str(tmp_path), "dry_run": True, "plan": ["self_pretraining"]}
    changes |= {"preset": "quick", "tasks": ["listops"], "seeds": 1}
    # Of which the fine-tuned know nothing: no source of theirs is swept.
    changes["grid"] = ["objective.mlm_probability=0.1,0.2"]
    sweep(SimpleNamespace(**{**NO_FLAGS, **changes}), None, {})
    out, err = capsys.readouterr()
    assert err.count("init_from_pretrain-seed0 is skipped: listops-") == 3
    assert "init_from" not in out
    assert out.count("-objective.mlm_probability=0.2-seed0\n") == 3


def test_words_of_the_plan_and_of_the_flag_count_both():
    flags = {"plan": ["as_published"], "tasks": ["listops"], "preset": "quick"}
    point, *_ = find_points(SimpleNamespace(**{**NO_FLAGS, **flags}), None, {})
    assert point.config.model.pooling == "padded_mean"
    assert point.config.task.max_length == 48


def test_a_plan_is_its_variants_with_what_the_flags_say_instead():
    flags = {"plan": ["table3"], "tasks": ["text", "image"], "seeds": 2}
    flags |= {"preset": "quick", "data_dir": "/x"}
    points = find_points(SimpleNamespace(**{**NO_FLAGS, **flags}), None, {})
    variants = ("nystrom", "softmax", "nystrom-num_landmarks=64", "linformer")
    order = itertools.product((0, 1), variants, ("text", "image"))
    names = [f"{t}-{v}-seed{s}" for s, v, t in itertools.islice(order, 8)]
    assert [point.name for point in points[:8]] == names
    assert len(points) == 2 * 2 * 6
    assert {point.config.task.data_dir for point in points} == {"/x"}
