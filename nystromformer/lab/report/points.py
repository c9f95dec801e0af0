"""Points: the runs that differ in nothing but the seed, named by what they differ in.

Only such runs may be averaged. Whatever else differs among the runs given (preset,
length, steps, batch, an option of the attention) becomes part of the name; other data
under the same settings are an error.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable
from typing import Any

from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.lab.report.runs import Run, is_finite
from nystromformer.lab.report.settings import (
    PRESET,
    SEED,
    Setting,
    names,
    phrase,
    refuse_duplicates,
    refuse_other_data,
)


@dataclasses.dataclass(frozen=True)
class Point:
    """The runs of one task and one setting, sorted by seed.

    Attributes:
      named: the settings that tell it from the other runs given, key -> value.
    """

    task: str
    attention: str
    named: dict[str, Any]
    runs: list[Run]

    def label(self, without: str = "") -> str:
        """As in "nystrom, 64 landmarks"; without one key's words."""
        words = [phrase(*item) for item in self.named.items() if item[0] != without]
        return ", ".join([self.attention, *words])

    def data_label(self) -> str:
        """As in "length 512": what tells its data from others of the same task."""
        named = self.named.items()
        of_data = [item for item in named if item[0].startswith(("task.", PRESET))]
        return ", ".join(phrase(*item) for item in of_data)

    @property
    def finished(self) -> list[Run]:
        """Its runs that have a result."""
        return [run for run in self.runs if run.result]

    @property
    def floors(self) -> dict[str, float]:
        """Of its data, which its runs share; empty before one is finished."""
        results = [run.result for run in self.runs if run.result]
        return results[0]["floors"] if results else {}

    def values(self, key: str) -> list[float]:
        """One number of each result that has it."""
        values = [(run.result or {}).get(key) for run in self.runs]
        return [value for value in values if is_finite(value)]


def mean_and_sd(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def floor_reached(run: Run) -> str | None:
    """The floor that a finished run is stuck at, if any.

    That is one within two standard deviations of its test accuracy, taken as the mean
    of test_examples draws; or the lowest one, where the accuracy is below all.
    """
    if not run.result or not run.result["floors"]:
        return None
    accuracy, floors = run.result["test_accuracy"], run.result["floors"]
    nearest = min(floors, key=lambda name: abs(floors[name] - accuracy))
    floor = floors[nearest]
    sd = math.sqrt(floor * (1 - floor) / run.result["test_examples"])
    stuck = abs(accuracy - floor) <= 2 * sd or accuracy <= min(floors.values())
    return nearest if stuck else None


def group(runs: Iterable[Run]) -> list[Point]:
    """The points of these runs, by task, attention and settings.

    Raises:
      ConfigError: two runs of the same settings and seed, or of the same task and
        other data; one line that names both.
    """
    given = [Setting.of(run) for run in runs]
    refuse_duplicates(given)
    refuse_other_data(given)
    points: dict[str, Point] = {}
    for one, named in zip(given, names(given), strict=True):
        same = repr(sorted({**one.values, SEED: None}.items()))
        task, attention = one.run.config.task.name, one.run.config.attention.name
        point = Point(task, attention, named, [])
        points.setdefault(same, point).runs.append(one.run)
    for point in points.values():
        point.runs.sort(key=lambda run: run.seed)
    tasks = list(TASKS)
    in_order = sorted(points.values(), key=by_attention)
    return sorted(in_order, key=lambda point: tasks.index(point.task))


def by_attention(point: Point) -> tuple:
    """A key to sort by: attentions in the order of their table, numbers by size."""
    values = [
        (key, *((0, value, "") if type(value) in (int, float) else (1, 0, repr(value))))
        for key, value in sorted(point.named.items())
    ]
    known = list(ATTENTIONS)
    place = known.index(point.attention) if point.attention in known else len(known)
    return place, point.attention, values
