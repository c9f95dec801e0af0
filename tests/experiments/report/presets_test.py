"""A run's command line, given to the flags of train.py, is its config again."""

import shlex

import pytest

from nystromformer.config import Config
from nystromformer.experiments.report.presets import command, is_paper, nearest_preset
from nystromformer.experiments.sweep.grid import _parse
from tests.commands import ROOT


@pytest.mark.parametrize(
    "changes",
    [
        {"arg": "nystrom"},
        {"attention__landmark_padding": "padded", "optimizer__learning_rate": 3e-05},
        {"task": "glue", "arg": "nystrom,mrpc", "train__init_from": "/x"},
        {"arg": "softmax,quick,pretrain"},
        {"task": "pathx", "arg": "nystrom,gpu", "task__source_dir": "/a folder/$HOME"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
def test_the_command_makes_the_run_again(runs, changes):
    config = runs.config(seed=7, **changes)
    python, script, *flags, workdir = shlex.split(command(config, "some run") or "")
    assert (python, script) == ("python", "scripts/train.py")
    assert workdir == "--workdir=some run"
    flags = [flag.replace("--config=", f"--config={ROOT}/") for flag in flags]
    assert Config.from_mapping(_parse(flags)).to_mapping() == config


def test_the_command_says_only_what_differs_from_the_nearest_preset(runs):
    config = runs.config(seed=2, task__data_dir="/here")
    assert command(config, "a/b") == (
        "python scripts/train.py --config=configs/listops.py:nystrom,quick "
        "--config.train.seed=2 --workdir=a/b"
    )
    assert nearest_preset(runs.config("nystrom"), set()) == ("paper", {})
    changes = {"task.data_dir": "/here"}
    assert nearest_preset(config, {"train.seed"}) == ("quick", changes)


def test_what_another_package_brings_has_no_command_and_no_options_of_a_preset(runs):
    config = runs.config("nystrom", seed=7)
    mine = {**config, "attention": {"name": "of_mine", "depth": 3}}
    assert nearest_preset(mine, set()) == ("paper", {"train.seed": 7})
    chess = {**config, "task": {"name": "chess"}}
    assert nearest_preset(chess, set()) == ("", {})
    assert command(mine, "x") is command(chess, "x") is None


def test_published_numbers_stand_beside_published_settings_alone(runs):
    assert is_paper("text", "paper", {"attention.num_landmarks": 64})
    config = runs.config("performer,as_published", task="text")
    assert nearest_preset(config, set()) == ("as_published", {})
    config = runs.config("performer,quick,as_published", task="text")
    assert nearest_preset(config, set()) == ("quick,as_published", {})
    assert is_paper("text", "as_published", {"train.grad_accum_steps": 8})
    assert not is_paper("text", "paper", {"train.num_steps": 700})
    assert not is_paper("text", "quick", {})
    assert not is_paper("pathx", "paper", {})
    assert not is_paper("glue", "mrpc", {})  # from scratch
    source = {"train.init_from": "/x", "task.tokenizer": "/x/tokenizer.json"}
    assert is_paper("glue", "mrpc", source)
    assert is_paper("text", "subwords", source)
    assert not is_paper("text", "paper", source)
    assert not is_paper("glue", "quick,mrpc", source)
    assert not is_paper("glue", "mrpc", {**source, "train.batch_size": 8})
