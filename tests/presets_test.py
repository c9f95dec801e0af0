"""Every config with every preset, as presets.txt has them.

Where a preset, a plan or a default has changed, `python -m tests.presets_test` writes
presets.txt anew, and its diff shows what has become of the configs and of the runs.
"""

import functools
import importlib
from pathlib import Path

import pytest
from flax.traverse_util import flatten_dict

from lra_tasks import TASKS
from lra_tasks.task import get_task
from nystromformer.config import Config
from nystromformer.experiments.report.records import read_records
from nystromformer.run_files import SETTINGS_WITHOUT_EFFECT
from tests import small
from tests.commands import ROOT
from tests.plans_test import list_all_runs

FILE = Path(__file__).with_name("presets.txt")
CONFIGS = {name: importlib.import_module(f"configs.{name}") for name in TASKS}


@functools.cache
def resolve(task, words):
    """All settings of a config file with these words behind its colon, by flat keys."""
    groups = CONFIGS[task].get_config(words).to_dict()
    config = Config.from_mapping(groups)  # It checks them, and so does the task.
    get_task(task, **config.task.options)
    return flatten_dict(groups, sep=".")


def preset_words(task):
    """No preset, each one alone, and each one beside `quick`."""
    names = ["smoke"]
    names += [name for name in CONFIGS[task].PRESETS if "," not in name]
    return ["", *names, *(f"quick,{name}" for name in names if name != "quick")]


def describe(task, words):
    """A line for each setting, and one for the options of each attention."""
    lines = {}
    for attention in small.BUILT_IN_ATTENTIONS:
        settings = resolve(task, f"{attention},{words}")
        options = {}
        for key, value in settings.items():
            group, _, option = key.rpartition(".")
            if group != "attention":
                lines[key] = f"{key} = {value!r}"
            elif option not in ("name", "by_layer"):
                options[option] = value
        text = ", ".join(f"{key}={value!r}" for key, value in options.items())
        lines[f"attention {attention}"] = f"{attention}({text})"
    return lines


def describe_presets():
    """The settings of each config file, then what each of its presets changes.

    A preset beside `quick` is compared with `quick` alone.
    """
    lines = []
    for task in CONFIGS:
        bases = {words: describe(task, words) for words in ("", "quick")}
        for words in preset_words(task):
            base = bases["quick" if words.startswith("quick,") else ""]
            settings = describe(task, words)
            lines.append(f"[{task}:{words}]" if words else f"[{task}]")
            for key, line in settings.items():
                if not words or line != base.get(key):
                    lines.append(line)
            lines.extend(f"no {key}" for key in base if key not in settings)
            lines.append("")
    return lines


def describe_all():
    """What presets.txt should be: presets, then the runs of each plan."""
    return [*describe_presets(), *list_all_runs()]


def test_all_presets_and_plans_are_those_of_the_file():
    assert describe_all() == FILE.read_text().splitlines()


@pytest.mark.parametrize(
    "name", ["nystrom", "linformer", "longformer", "bigbird", "reformer"]
)
def test_no_preset_has_a_larger_size_than_its_sequences(name):
    key = f"attention.{small.BUILT_IN_ATTENTIONS[name].size_option}"
    for task in CONFIGS:
        for words in preset_words(task):
            settings = resolve(task, f"{name},{words}")
            max_length = settings["task.max_length"] or settings["task.size"] ** 2
            assert settings[key] <= max_length, f"{task}:{name},{words}"


# Runs of quick_tasks that read all pixels, which was the default.
ALL_PIXELS_RUNS = ("image-", "pathfinder-")
# Until 1347df84 bigbird and reformer had a seed of their own.
OPTIONS_OF_OLD_RECORDS = {"attention.seed"}


@pytest.mark.parametrize(
    "folder", ["equal_footing", "listops_short", "quick_tasks", "recall"]
)
def test_presets_have_the_settings_of_recorded_runs(folder):
    """A setting that a record does not have is newer than the record."""
    for run in read_records([ROOT / "results" / folder]):
        record = run["config"]
        task_name = record["task"]["name"]
        attention_name = record["attention"]["name"]
        if attention_name not in small.BUILT_IN_ATTENTIONS:
            continue  # It is the one of examples/custom.py.

        overrides = record.pop("overrides")
        preset = record.pop("preset")
        if folder == "quick_tasks" and run["run"].startswith(ALL_PIXELS_RUNS):
            preset += ",all_pixels"
        settings = resolve(task_name, f"{attention_name},{preset}")
        expected = settings | overrides
        for key, value in flatten_dict(record, sep=".").items():
            if key not in SETTINGS_WITHOUT_EFFECT | OPTIONS_OF_OLD_RECORDS:
                assert expected[key] == value, f"{key} of {run['run']}"


if __name__ == "__main__":
    FILE.write_text("\n".join(describe_all()) + "\n")
