"""Which preset of configs/ a run comes from, and the command that makes it again."""

import importlib
import shlex
from typing import Any

from nystromformer.config import Config

PRESETS = ("paper", "quick", "gpu")  # a task need not have all


def flatten(config: Config, without: frozenset[str] | set[str]) -> dict[str, Any]:
    """The config as "group.key" -> value, without some of the keys."""
    return {
        f"{group}.{key}": value
        for group, fields in config.to_mapping().items()
        for key, value in fields.items()
        if f"{group}.{key}" not in without
    }


def nearest_preset(
    config: Config, without: frozenset[str] | set[str] = frozenset()
) -> tuple[str, dict[str, Any]]:
    """The preset with the fewest differences, and these: "group.key" -> value.

    Keys in `without` do not count.
    """
    module = importlib.import_module(f"configs.{config.task.name}")
    ours, changes = flatten(config, without), {}
    for preset in PRESETS:
        try:
            theirs = module.get_config(f"{config.attention.name},{preset}")
        except ValueError:  # this task has no such preset
            continue
        theirs = flatten(Config.from_mapping(theirs.to_dict()), without)
        changes[preset] = {
            key: value
            for key, value in ours.items()
            if key not in theirs or theirs[key] != value
        }
    return min(changes.items(), key=lambda item: len(item[1]))


def command(config: Config, workdir: str) -> str:
    """The command line of scripts/train.py; where the data lie is left out."""
    preset, changes = nearest_preset(config, without={"task.data_dir"})
    name, attention = config.task.name, config.attention.name
    suffix = "" if preset == "paper" else f",{preset}"
    words = [
        *("python", "scripts/train.py"),
        f"--config=configs/{name}.py:{attention}{suffix}",
        *(f"--config.{key}={value}" for key, value in changes.items()),
        f"--workdir={workdir}",
    ]
    return shlex.join(words)
