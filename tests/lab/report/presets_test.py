"""A run's command line, given to the flags of train.py, is its config again."""

import shlex
import sys
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_flags

from nystromformer.config import Config
from nystromformer.lab.report.presets import command, is_paper, nearest_preset

ROOT = Path(__file__).parents[3]


def parse(line: str) -> dict:
    """What the flags of scripts/train.py make of a command line."""
    python, script, *args = shlex.split(line)
    assert (python, script) == ("python", "scripts/train.py")
    args = [arg.replace("--config=", f"--config={ROOT}/") for arg in args]
    sys.argv = [script, *args]  # where ml_collections looks for overrides
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "", flag_values=values)
    flags.DEFINE_string("workdir", None, "", flag_values=values)
    values(sys.argv)
    assert values.workdir == "some run"
    return Config.from_mapping(values.config.to_dict()).to_mapping()


@pytest.mark.parametrize(
    "changes",
    [
        {"arg": "nystrom"},
        {"arg": "softmax,quick", "seed": 7},
        {"attention__num_landmarks": 32, "optimizer__learning_rate": 3e-05},
        {"attention__segments": "padded", "model__dtype": "bfloat16"},
        {"task": "pathx", "arg": "nystrom,gpu", "task__source_dir": "/a folder/$HOME"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
def test_the_command_makes_the_run_again(runs, changes, monkeypatch):
    monkeypatch.setattr(sys, "argv", sys.argv)  # put back afterwards
    config = runs.config(**changes)
    assert parse(command(config, "some run")) == config


def test_the_command_says_only_what_differs_from_the_preset(runs):
    config = runs.config(seed=2, task__data_dir="/here")
    assert command(config, "a/b") == (
        "python scripts/train.py --config=configs/listops.py:nystrom,quick "
        "--config.train.seed=2 --workdir=a/b"
    )


def test_the_nearest_preset_has_the_fewest_differences(runs):
    assert nearest_preset(runs.config("nystrom"), set()) == ("paper", {})
    changed = runs.config("nystrom,quick", train__num_steps=700)
    assert nearest_preset(changed, set()) == ("quick", {"train.num_steps": 700})
    assert nearest_preset(changed, {"train.num_steps"}) == ("quick", {})


def test_what_another_package_brings_has_no_command_and_no_options_of_a_preset(runs):
    config = runs.config("nystrom", train__num_steps=700, optimizer__warmup_steps=7)
    mine = {**config, "attention": {"name": "of_mine", "depth": 3}}
    changes = {"optimizer.warmup_steps": 7, "train.num_steps": 700}
    assert nearest_preset(mine, set()) == ("paper", changes)
    assert command(mine, "x") is None
    chess = {**config, "task": {"name": "chess"}}
    assert nearest_preset(chess, set()) == ("", {})
    assert command(chess, "x") is None


def test_published_numbers_stand_beside_the_paper_preset_alone():
    assert is_paper("text", "paper", {})
    assert is_paper("text", "paper", {"attention.num_landmarks": 64})
    assert not is_paper("text", "paper", {"train.num_steps": 700})
    assert not is_paper("text", "quick", {})
    assert not is_paper("pathx", "paper", {})
    assert not is_paper("chess", "paper", {})
