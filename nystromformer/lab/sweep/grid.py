"""The points of a sweep: a grid or a plan, times the seeds, as commands of train.py."""

import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags
from tqdm import tqdm

from lra_tasks.task import get_task
from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config, ConfigError
from nystromformer.lab.run import Experiment
from nystromformer.lab.workdir import check_workdir, read_result

TRAIN = Path(__file__).parents[3] / "scripts" / "train.py"

Variant = dict[str, Any]  # config key, as in attention.num_landmarks -> value
Mapping = dict[str, dict[str, Any]]  # group -> key -> value


@dataclasses.dataclass(frozen=True)
class Base:
    """What the points start from: a config file, its preset, and fixed changes."""

    file: str
    words: tuple[str, ...] = ()
    changes: Variant = dataclasses.field(default_factory=dict)

    def parse(self, variant: Variant) -> tuple[list[str], Mapping]:
        """The flags of train.py and the config that it will read from them.

        Keys that the variant's attention does not have are left out.
        """
        words, changes = list(self.words), {**self.changes, **variant}
        if name := changes.pop("attention.name", None):
            if name not in ATTENTIONS:
                listed = ", ".join(ATTENTIONS)
                raise ConfigError(f"unknown attention {name!r}; known: {listed}")
            words = [name, *(word for word in words if word not in ATTENTIONS)]
        file = f"--config={self.file}" + (f":{','.join(words)}" if words else "")
        known = keys(_parse([file]))
        chosen = [f"--config.{k}={x}" for k, x in changes.items() if k in known]
        return [file, *chosen], _parse([file, *chosen])


@dataclasses.dataclass(frozen=True)
class Point:
    """One run. Its name is that of its folder in the sweep's."""

    name: str
    flags: tuple[str, ...]
    config: Config

    def command(self, folder: Path) -> list[str]:
        """What runs it, as a list of words."""
        workdir = f"--workdir={folder / self.name}"
        return [sys.executable, str(TRAIN), *self.flags, workdir]

    @functools.cached_property
    def tokens(self) -> int:
        """How many tokens it trains on: about proportional to the time it takes."""
        train = self.config.train
        task = get_task(self.config.task.name, **self.config.task.options)
        return train.num_steps * train.batch_size * task.num_inputs * task.max_length


def keys(mapping: Mapping) -> set[str]:
    """All keys of a config, as in attention.num_landmarks."""
    return {f"{group}.{key}" for group, fields in mapping.items() for key in fields}


def parse_grid(texts: Sequence[str]) -> list[Variant]:
    """Every combination of `KEY=VALUE,VALUE` texts, the last key changing fastest.

    Raises:
      ConfigError: no such text, or a key or value that is there twice.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not key or not values or not all(values.split(",")):
            raise ConfigError(f"--grid={text} is not of the form KEY=VALUE,VALUE")
        if key in axes:
            raise ConfigError(f"--grid names {key} twice; put its values in one")
        if key == "train.seed":
            raise ConfigError("--grid cannot set train.seed: --seeds=3 is for seeds")
        axes[key] = no_twice(values.split(","), f"--grid {key}")
    combined = itertools.product(*axes.values())
    return [dict(zip(axes, values, strict=True)) for values in combined]


def no_twice(values: list[str], what: str) -> list[str]:
    """The values, or a ConfigError for one that is there twice."""
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"{what} names {value} twice")
    return values


def make_points(
    bases: Sequence[Base], variants: Sequence[Variant], num_seeds: int
) -> list[Point]:
    """All points: for each seed each variant on each base, in this order.

    Raises:
      ConfigError: a config that train.py would refuse, a key that no point has or
        that is given twice, or two points that are the same.
    """
    known: set[str] = set()
    for base, variant in itertools.product(bases, variants):
        if twice := base.changes.keys() & variant.keys():
            raise ConfigError(f"{min(twice)} is given twice: by --grid and beside it")
        known |= keys(base.parse(variant)[1])
    points: list[Point] = []
    for seed, variant, base in itertools.product(range(num_seeds), variants, bases):
        point = _make_point(base, variant, seed)
        if point not in points:  # the variants differ in what its attention lacks
            points.append(point)
    wanted = [key for base in bases for key in base.changes]
    for key in [*wanted, *(key for variant in variants for key in variant)]:
        if key not in known:
            alike = [x for x in known if x.split(".")[0] == key.split(".")[0]]
            listed = ", ".join(sorted(alike or known))
            raise ConfigError(f"no point has the key {key}; known: {listed}")
    _refuse_one_name(points)
    for one, other in itertools.combinations(points, 2):
        if one.config == other.config:
            raise ConfigError(f"{one.name} and {other.name} are the same point")
    return points


def merged(sweeps: Iterable[Sequence[Point]]) -> list[Point]:
    """The points of several sweeps, without what an earlier one has by any name.

    Raises:
      ConfigError: two that differ and would have one name.
    """
    points: list[Point] = []
    for point in itertools.chain(*sweeps):
        if all(one.config != point.config for one in points):
            points.append(point)
    _refuse_one_name(points)
    return points


def _refuse_one_name(points: Sequence[Point]) -> None:
    names = [point.name for point in points]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two points would be named {name}; sweep them apart")


def check_points(points: Iterable[Point], folder: Path) -> None:
    """Raises ConfigError or DataError for the first that cannot run in the folder."""
    built = []
    for point in tqdm(points, desc="checking", leave=False, disable=None):
        try:
            check_workdir(folder / point.name, point.config)
            read_result(folder / point.name)
            mapping = point.config.to_mapping()
            mapping["train"]["seed"] = 0
            if mapping not in built:  # seeds share a model
                Experiment.from_config(point.config)
                built.append(mapping)
        except ValueError as error:
            raise ConfigError(f"{point.name}: {error}") from error


def _make_point(base: Base, variant: Variant, seed: int) -> Point:
    chosen, mapping = base.parse(variant)
    seed += mapping["train"]["seed"]
    chosen = [x for x in chosen if not x.startswith("--config.train.seed=")]
    mapping["train"]["seed"] = seed
    config = Config.from_mapping(mapping)
    known = keys(mapping) - {"attention.name"}
    named = [
        f"{key.removeprefix('attention.')}={value}"
        for key, value in variant.items()
        if key in known
    ]
    words = [config.task.name, config.attention.name, *named, f"seed{seed}"]
    name = re.sub(r"[^\w.+=-]", "_", "-".join(words))
    return Point(name, (*chosen, f"--config.train.seed={seed}"), config)


def _parse(argv: list[str]) -> Mapping:
    """A config as train.py reads it from these flags."""
    argv = ["train.py", *argv]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except (flags.Error, OSError, TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    return getattr(values, "config").to_dict()  # noqa: B009 - made at run time
