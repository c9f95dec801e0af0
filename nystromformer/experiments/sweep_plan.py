"""sweep.json in the folder of a sweep: the config of each run that it plans."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nystromformer.config import Config
from nystromformer.experiments.points import Point
from nystromformer.experiments.workdir import write_json
from nystromformer.run_files import PLAN_FILE

# Fields of a config that say how it was written, not what is trained.
NOT_COMPARED = frozenset(
    field.name for field in dataclasses.fields(Config) if not field.compare
)


def keep_planned_names(points: Sequence[Point], folder: Path) -> list[Point]:
    """Gives points that an earlier sweep has planned in this folder their names there.

    A name has the settings that a sweep varies, so two sweeps may name one run
    differently, and would train it twice.
    """
    planned_names = {
        _settings_key(groups): name for name, groups in _read_plan(folder).items()
    }
    renamed: dict[str, Point] = {}
    # A source has no source itself: it has its name before those that start from it.
    for point in sorted(points, key=lambda point: point.source is not None):
        source = renamed[point.source].name if point.source in renamed else point.source
        from_source = dataclasses.replace(point, source=source)
        key = _settings_key(from_source.planned_config(folder))
        name = planned_names.get(key, point.name)
        renamed[point.name] = dataclasses.replace(from_source, name=name)
    return [renamed[point.name] for point in points]


def _settings_key(groups: Mapping[str, Any]) -> str:
    """A text that two configs share if `Config` takes them for equal."""
    compared = {key: value for key, value in groups.items() if key not in NOT_COMPARED}
    return json.dumps(compared, sort_keys=True)


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
