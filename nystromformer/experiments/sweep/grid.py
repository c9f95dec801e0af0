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
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.workdir import check_workdir, read_result

TRAIN = Path(__file__).parents[3] / "scripts" / "train.py"

# Config key, as in attention.num_landmarks -> value; of a plan also presets and after.
Variant = dict[str, Any]
Groups = dict[str, dict[str, Any]]  # group -> key -> value


@dataclasses.dataclass(frozen=True)
class Base:
    """The start of every point: a config file, its preset, and fixed changes."""

    file: str
    words: tuple[str, ...] = ()
    changes: Variant = dataclasses.field(default_factory=dict)

    def parse(self, variant: Variant) -> tuple[list[str], Groups]:
        """The flags of train.py and the config that it will read from them.

        Keys that the variant's attention does not have are left out.
        """
        changes = {**self.changes, **variant}
        changes.pop("init_from", None)
        words = [*self.words, *filter(None, [changes.pop("presets", "")])]
        if name := changes.pop("attention.name", None):
            if name not in ATTENTIONS:
                listed = ", ".join(ATTENTIONS)
                raise ConfigError(f"unknown attention {name!r}; known: {listed}")
            words = [name, *(word for word in words if word not in ATTENTIONS)]
        file = f"--config={self.file}" + (f":{','.join(words)}" if words else "")
        known = _keys(_parse([file]))
        chosen = [f"--config.{k}={x}" for k, x in changes.items() if k in known]
        return [file, *chosen], _parse([file, *chosen])


@dataclasses.dataclass(frozen=True)
class Point:
    """One run. Its name is that of its folder.

    source: the name of the point whose best weights it begins with, if any.
    """

    name: str
    flags: tuple[str, ...]
    config: Config
    source: str | None = None

    def command(self, folder: Path) -> list[str]:
        """The command that runs it, as a list of words."""
        words = [f"--workdir={folder / self.name}"]
        if self.source:
            words.insert(0, f"--config.train.init_from={folder / self.source}")
        return [sys.executable, str(TRAIN), *self.flags, *words]

    @functools.cached_property
    def tokens(self) -> int:
        """The number of tokens it trains on, roughly proportional to its time."""
        train = self.config.train
        task = get_task(self.config.task.name, **self.config.task.options)
        return train.num_steps * train.batch_size * task.num_inputs * task.max_length


def parse_grid(texts: Sequence[str]) -> list[Variant]:
    """Every combination of `KEY=VALUE,VALUE` texts, the last key changing fastest."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not key or not all(values.split(",")):
            raise ConfigError(f"--grid={text} is not of the form KEY=VALUE,VALUE")
        if key in axes:
            raise ConfigError(f"--grid names {key} twice; put its values in one")
        if key == "train.seed":
            raise ConfigError("--grid cannot set train.seed: --seeds=3 is for seeds")
        axes[key] = values.split(",")
    combined = itertools.product(*axes.values())
    return [dict(zip(axes, values, strict=True)) for values in combined]


def make_points(
    bases: Sequence[Base], variants: Sequence[Variant], num_seeds: int
) -> list[Point]:
    """All points: for each seed each variant on each base, without duplicates.

    Raises:
      ConfigError: a config that train.py would refuse, a key that no point has or
        that is given twice, or two points of one name.
    """
    points, known = [], set()
    for seed, variant, base in itertools.product(range(num_seeds), variants, bases):
        if twice := base.changes.keys() & variant.keys():
            raise ConfigError(
                f"{min(twice)} is given twice, in --grid and as --config.…"
            )
        chosen, groups = base.parse(variant)
        known |= _keys(groups)
        points.append(_make_point(variant, chosen, groups, seed))
    for key in itertools.chain(*(base.changes for base in bases), *variants):
        if key not in known | {"presets", "init_from"}:
            alike = [x for x in known if x.split(".")[0] == key.split(".")[0]]
            listed = ", ".join(sorted(alike or known))
            raise ConfigError(f"no point has the key {key}; known: {listed}")
    return merged([points])


def _make_point(
    variant: Variant, chosen: Sequence[str], groups: Groups, seed: int
) -> Point:
    groups["train"]["seed"] += seed
    seed, source = groups["train"]["seed"], None
    known = _keys(groups) - {"attention.name"}
    named = [
        f"{key.removeprefix('attention.')}={value}"
        for key, value in variant.items()
        if key in known
    ]

    def name(*stage: str) -> str:
        who = (groups[group]["name"] for group in ("task", "attention"))
        words = [*who, *filter(None, stage), *named, f"seed{seed}"]
        return re.sub(r"[^\w.+=-]", "_", "-".join(words))

    stage, after = variant.get("presets", ""), variant.get("init_from")
    own = name(stage, f"after_{after}" if after else "")
    if after:
        source = groups["train"]["init_from"] = name(after)
    kept = [word for word in chosen if not word.startswith("--config.train.seed=")]
    flags = (*kept, f"--config.train.seed={seed}")
    return Point(own, flags, Config.from_mapping(groups), source)


def merged(sweeps: Iterable[Sequence[Point]]) -> list[Point]:
    """The points of several sweeps; equal configs count once, whatever their names."""
    points: dict[str, Point] = {}
    for point in itertools.chain(*sweeps):
        if all(one.config != point.config for one in points.values()):
            if point.name in points:
                raise ConfigError(
                    f"two points would be named {point.name}; sweep them apart"
                )
            points[point.name] = point
    return list(points.values())


def check_points(
    points: Iterable[Point], folder: Path
) -> tuple[list[Point], list[str]]:
    """The points that can run in the folder, and a line about each of the others.

    A point is left out where its workdir is damaged or holds another run.

    Raises:
      ConfigError: a model that cannot be built, or no point that can run.
    """
    built, fit, left_out = [], [], []
    for point in tqdm(points, desc="checking", leave=False, disable=None):
        try:
            groups = point.config.to_mapping()
            groups["train"]["seed"] = 0
            if groups not in built:  # seeds share a model
                Experiment.from_config(point.config)
                built.append(groups)
        except ValueError as error:
            raise ConfigError(f"{point.name}: {error}") from error
        try:
            check_workdir(folder / point.name, point.config)
            read_result(folder / point.name)
            fit.append(point)
        except (ConfigError, OSError) as error:
            left_out.append(f"{point.name} is skipped: {error}")
    if not fit:
        raise ConfigError(left_out[0])
    return fit, left_out


def _keys(groups: Groups) -> set[str]:
    """All keys of a config, as in attention.num_landmarks."""
    return {f"{group}.{key}" for group, fields in groups.items() for key in fields}


def _parse(argv: list[str]) -> Groups:
    """A config as train.py reads it from these flags."""
    argv = ["train.py", *argv]
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except (flags.Error, OSError, TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    return getattr(values, "config").to_dict()  # noqa: B009 - made at run time
