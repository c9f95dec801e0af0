"""Grids as points: which there are, in which order, and what is refused."""

import dataclasses
import re

import pytest

from nystromformer.config import Config, ConfigError
from nystromformer.experiments.sweep import grid
from nystromformer.experiments.sweep.grid import (
    Base,
    check_points,
    make_points,
    merged,
    parse_grid,
)
from nystromformer.experiments.workdir import open_workdir
from tests.commands import ROOT

FILE = f"{ROOT}/configs/listops.py"
QUICK = Base(FILE, ("quick",))

# How ml_collections reads a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


def names(*texts: str, seeds: int = 1, base: Base = QUICK) -> list[str]:
    return [point.name for point in make_points([base], parse_grid(texts), seeds)]


def test_a_grid_is_every_combination_once_for_each_seed_in_turn():
    found = names("attention.name=nystrom,linear", "train.batch_size=8,16", seeds=2)
    assert found == [
        f"listops-{attention}-train.batch_size={size}-seed{seed}"
        for seed in (0, 1)
        for attention in ("nystrom", "linear")
        for size in (8, 16)
    ]


def test_a_key_that_an_attention_does_not_have_gives_it_one_point():
    texts = ["attention.num_landmarks=4,8", "attention.name=nystrom,linformer"]
    points = make_points([QUICK], parse_grid(texts), 1)
    assert [point.name for point in points] == [
        "listops-nystrom-num_landmarks=4-seed0",
        "listops-linformer-seed0",
        "listops-nystrom-num_landmarks=8-seed0",
    ]
    options = points[1].config.attention.options
    assert (options["projection_dim"], "num_landmarks" in options) == (12, False)


def test_the_attention_of_the_config_holds_where_the_grid_names_none():
    softmax = Base(FILE, ("softmax", "quick"))
    changed = Base(FILE, ("softmax", "quick"), {"attention.name": "linear"})
    assert names(base=softmax) == ["listops-softmax-seed0"]
    assert names("attention.name=linear", base=softmax) == ["listops-linear-seed0"]
    assert names(base=changed) == ["listops-linear-seed0"]


def test_the_flags_of_a_point_say_its_config(tmp_path):
    base = Base(FILE, ("quick",), {"train.num_steps": 700, "train.seed": 5})
    points = make_points([base], parse_grid(["attention.name=nystrom,softmax"]), 2)
    assert [point.config.train.seed for point in points] == [5, 5, 6, 6]
    for point in points:
        read = Config.from_mapping(grid._parse(list(point.flags)))
        assert read == point.config
        assert read.train.num_steps == 700
        *_, workdir = point.command(tmp_path)
        assert workdir == f"--workdir={tmp_path}/{point.name}"


BAD = {
    ("attention.name=",): "is not of the form KEY=VALUE,VALUE",
    ("train.batch_size=8", "train.batch_size=16"): "names train.batch_size twice",
    ("train.seed=1,2",): "--seeds=3 is for seeds",
    ("attention.landmarks_=4",): r"no point has the key .*_; known: attention\.conv",
    ("attention.name=softmax", "attention.num_landmarks=4"): "no point has the key",
    ("attention.name=nystrom,quick",): "unknown attention 'quick'; known: nystrom",
    ("task.source_dir=a/b,a_b",): "two points would be named listops-.*_dir=a_b-seed0",
    ("train.batch_size=many",): "invalid literal for int",
    ("train.batch_size=0",): "batch_size: .*greater than 0, got 0",
    ("optimizer.warmup_steps=4",): "warmup_steps is given twice",
}


@pytest.mark.parametrize("texts", BAD, ids="+".join)
def test_a_grid_that_cannot_be_run_is_an_error(texts):
    base = Base(FILE, ("quick",), {"optimizer.warmup_steps": 5})
    with pytest.raises(ConfigError, match=BAD[texts]):
        names(*texts, base=base)


def test_of_several_sweeps_what_an_earlier_one_has_by_any_name_is_left_out():
    # 6 landmarks are the preset's.
    first = make_points([QUICK], parse_grid(["attention.name=nystrom,softmax"]), 1)
    second = make_points([QUICK], parse_grid(["attention.num_landmarks=8,6"]), 1)
    assert [point.name for point in merged([first, second])] == [
        "listops-nystrom-seed0",
        "listops-softmax-seed0",
        "listops-nystrom-num_landmarks=8-seed0",
    ]


def test_points_are_checked_before_anything_is_written(tmp_path):
    texts = ["attention.num_landmarks=4,8,0"]
    one, other, none = make_points([QUICK], parse_grid(texts), 1)
    assert check_points([one, other], tmp_path) == ([one, other], [])
    assert not any(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="listops-nystrom-num_landmarks=0-seed0: "):
        check_points([none], tmp_path)

    theirs = grid._parse([*other.flags, "--config.train.num_steps=7000"])
    open_workdir(tmp_path / other.name, Config.from_mapping(theirs))
    (tmp_path / other.name / "best").mkdir()
    (tmp_path / other.name / "best" / "700.safetensors").touch()  # it has begun
    fit, [line] = check_points([one, other], tmp_path)
    assert fit == [one]
    assert re.match(r"list.*landmarks=8-seed0 is skipped: .*num_steps is 7000", line)
    with pytest.raises(ConfigError, match="is skipped: "):
        check_points([other], tmp_path)


def test_the_tokens_are_those_of_the_task_said_in_the_config_or_not():
    changes = {"num_steps": 7, "batch_size": 3}
    variant = {f"train.{key}": x for key, x in changes.items()}
    variant["optimizer.warmup_steps"] = 1
    [point] = make_points([Base(f"{ROOT}/configs/retrieval.py")], [variant], 1)
    assert point.tokens == 7 * 3 * 2 * 4000
    del point.config.task.options["max_length"]
    assert dataclasses.replace(point).tokens == point.tokens
