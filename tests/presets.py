"""The settings of presets, with one name for each, as in model.pooling."""

import importlib
from types import ModuleType
from typing import Any

from flax.traverse_util import flatten_dict

from lra_tasks.task import TASKS

MODULES: dict[str, ModuleType] = {
    name: importlib.import_module(f"configs.{name}") for name in TASKS
}


def flat(task: str, arg: str) -> dict[str, Any]:
    """All settings of a task's config file with these presets."""
    return flatten_dict(MODULES[task].get_config(arg).to_dict(), sep=".")


def check_settings(
    task: str,
    preset: str,
    expected: dict[str, Any],
    *,
    base: str = "",
    attention: str = "nystrom",
) -> None:
    """Checks that a preset has the expected settings, and changes no others.

    Args:
      task: the task.
      preset: the preset.
      expected: settings that the preset has.
      base: the presets whose other settings are not changed.
      attention: the attention of both.
    """
    settings = flat(task, f"{attention},{preset}")
    base_settings = flat(task, f"{attention},{base}")
    assert {key: settings[key] for key in expected} == expected
    changed_keys = {
        key for key, value in settings.items() if base_settings.get(key) != value
    }
    assert changed_keys <= expected.keys() | {"preset"}
