"""sweep.json in the folder of a sweep: the config of each run that it plans."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.experiments.config_file import compared_settings
from nystromformer.experiments.points import Point, with_source
from nystromformer.experiments.run import write_json
from nystromformer.run_files import PLAN_FILE


def keep_planned_names(points: Sequence[Point], folder: Path) -> list[Point]:
    """Gives points that an earlier sweep has planned in this folder their names there.

    A name has the settings that a sweep varies, so two sweeps may name one run
    differently, and would train it twice.

    Args:
      points: those of this sweep, sources among them.
      folder: the folder of the sweep.

    Returns:
      The points in the same order. Two of them have one name if the plan has given a
      point's own name to a run of other settings.
    """
    planned_settings = {
        name: _settings_key(groups) for name, groups in _read_plan(folder).items()
    }
    planned_names: dict[str, str] = {}
    for name, key in planned_settings.items():
        planned_names.setdefault(key, name)

    renamed: dict[str, Point] = {}
    # A source has no source itself: it has its name before those that start from it.
    for point in sorted(points, key=lambda point: point.source is not None):
        new_point = point
        if point.source in renamed:
            source = renamed[point.source].name
            config = with_source(point.config, source)
            new_point = dataclasses.replace(point, config=config, source=source)
        key = _settings_key(new_point.planned_config(folder))
        name = point.name
        if planned_settings.get(name) != key:
            name = planned_names.get(key, name)
        renamed[point.name] = dataclasses.replace(new_point, name=name)
    return [renamed[point.name] for point in points]


def _settings_key(groups: Mapping[str, Any]) -> str:
    """A text that configs share whose runs have equal numbers.

    Runs on two folders of data are two, though a run may go on when its folder moves.
    """
    source_dir = groups["task"].get("source_dir")
    settings = {**compared_settings(groups), "task.source_dir": source_dir}
    return json.dumps(settings, sort_keys=True)


def _read_plan(folder: Path) -> dict[str, Any]:
    """The configs that sweeps have planned in a folder, by the names of the runs."""
    plan_file = folder / PLAN_FILE
    return json.loads(plan_file.read_text()) if plan_file.exists() else {}


def write_plan(points: Iterable[Point], folder: Path) -> None:
    """Adds the configs of all runs to the plan, for a report to count those to come.

    What an earlier sweep has planned in this folder stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    configs = _read_plan(folder)
    for point in points:
        configs[point.name] = point.planned_config(folder)
    write_json(folder / PLAN_FILE, configs)
