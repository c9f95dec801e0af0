"""The runs of a sweep: a grid or a plan, times the seeds, as points with names."""

import dataclasses
import difflib
import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import config_flags

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.experiment import Experiment, check_num_steps
from nystromformer.experiments.workdir import PLAN_FILE, write_json

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
# Keys of a variant that are no keys of a config.
VARIANT_KEYS = frozenset({"presets", "init_from"})

Changes = Mapping[str, Any]  # config key, as in attention.num_landmarks -> value


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep.

    name: of its folder in the sweep's folder.
    flags: of train.py, all but --workdir and the source.
    config: what these flags say.
    source: the name of the point whose best weights it starts from.
    """

    name: str
    flags: tuple[str, ...]
    config: Config
    source: str | None = None

    def command(self, folder: Path) -> list[str]:
        """The command that trains it, in a folder of the sweep's folder."""
        words = [sys.executable, str(TRAIN), *self.flags]
        if self.source:
            words.append(f"--config.train.init_from={folder / self.source}")
        return [*words, f"--workdir={folder / self.name}"]

    def planned_config(self, folder: Path) -> dict[str, Any]:
        """The groups that the run will write to its config.json."""
        groups = self.config.to_mapping()
        if self.source:
            source = str(folder / self.source)
            groups["train"]["init_from"] = source
            groups["overrides"]["train.init_from"] = source
        return groups


def parse_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """Combines the values of several keys in every way, the last changing fastest.

    Args:
      texts: as in "attention.num_landmarks=8,16".

    Raises:
      ConfigError: for a text of another form, a key given twice, and seeds.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        has_values = all([key, *values.split(",")])
        if not has_values or key in axes or key == "train.seed":
            raise ConfigError(
                f"--grid={text}: give KEY=VALUE,VALUE, each key once; for seeds take "
                "--seeds"
            )
        axes[key] = values.split(",")

    combinations = itertools.product(*axes.values())
    return [dict(zip(axes, values, strict=True)) for values in combinations]


def make_points(
    files: Sequence[str],
    variants: Sequence[Changes],
    *,
    presets: str = "",
    changes: Changes | None = None,
    num_seeds: int = 1,
    load: Sequence[str] = (),
) -> list[Point]:
    """Makes a point for each seed, variant and config file.

    Args:
      files: FILE.py[:PRESET,…]; these presets are part of the names.
      variants: changes that are part of the names, where the config has the key; also
        `presets`, and `init_from`: the presets of the point whose weights it takes.
      presets: of all points.
      changes: of all points, in place of a variant's.
      num_seeds: seeds of each setting, the config's and the next.
      load: modules that the runs import.

    Raises:
      ConfigError: if one of the runs could not start, or no run has a changed key.
    """
    changes = changes or {}
    imports = tuple(f"--load={module}" for module in load)
    points = []
    known_keys = set(VARIANT_KEYS)
    for seed, variant, file in itertools.product(range(num_seeds), variants, files):
        point = _make_checked_point(file, presets, variant, changes, seed)
        points.append(dataclasses.replace(point, flags=imports + point.flags))

        groups = point.config.to_mapping()
        del groups["overrides"]
        known_keys.update(flatten_dict(groups, sep="."))

    changed_keys = set(changes).union(*variants)
    unknown_keys = sorted(changed_keys - known_keys)
    if unknown_keys:
        key = unknown_keys[0]
        similar = difflib.get_close_matches(key, known_keys) or sorted(known_keys)
        raise ConfigError(f"no run has the key {key}; known: {', '.join(similar)}")
    return points


def _make_checked_point(
    file: str, presets: str, variant: Changes, changes: Changes, seed: int
) -> Point:
    """A point that can run; ConfigError, which names the file, otherwise."""
    try:
        point = _make_point(file, presets, variant, changes, seed)
        if seed == 0:  # further seeds differ in nothing that is checked
            check_num_steps(point.config.train)
            Experiment(point.config)
    except (flags.Error, OSError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[-1]  # above it: the traceback of a config
        raise ConfigError(f"{file.strip(':')}: {reason}") from error
    return point


def _make_point(
    file: str, presets: str, variant: Changes, changes: Changes, seed: int
) -> Point:
    """The point of a variant on a config file; `seed` is added to the config's."""
    path, _, file_presets = file.partition(":")
    values = {**variant, **changes}
    stage = _join(file_presets, variant.get("presets"))
    words = _join(presets, stage, values.pop("attention.name", None))
    config_flag = f"--config={path}:{words}"

    preset = flatten_dict(_read_config([config_flag]), sep=".")
    values = {key: value for key, value in values.items() if key in preset}
    named_keys = [key for key in variant if key in values]
    first_seed = int(values.get("train.seed", preset["train.seed"]))
    values["train.seed"] = first_seed + seed
    point_flags = [f"--config.{key}={value}" for key, value in values.items()]
    groups = _read_config([config_flag, *point_flags])

    # As in "listops-nystrom-num_landmarks=16-seed0".
    settings = [f"{key}={values[key]}".removeprefix("attention.") for key in named_keys]
    beginning = [groups["task"]["name"], groups["attention"]["name"]]
    end = [*settings, f"seed{values['train.seed']}"]
    source = None
    stages = [stage]
    if variant.get("init_from"):
        source = _folder_name([*beginning, variant["init_from"], *end])
        stages.append(f"init_from_{variant['init_from']}")
        groups["train"]["init_from"] = source
    return Point(
        name=_folder_name([*beginning, *stages, *end]),
        flags=(config_flag, *point_flags),
        config=Config.from_mapping(groups),
        source=source,
    )


def _join(*words: str | None) -> str:
    return ",".join(word for word in words if word)


def _folder_name(parts: Iterable[str]) -> str:
    """The parts that are not empty, with letters that any file system takes."""
    name = "-".join(part for part in parts if part)
    return re.sub(r"[^\w.+=-]", "_", name)


def _read_config(words: Sequence[str]) -> dict[str, Any]:
    """Reads train.py's flags --config and --config.group.key as it does."""
    values = flags.FlagValues()
    argv = ["train.py", *words]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    values(argv)
    overrides = config_flags.get_override_values(values["config"])
    return {**values.config.to_dict(), "overrides": overrides}


def merge(points: Iterable[Point]) -> list[Point]:
    """Leaves one point for each config, the first.

    Raises:
      ConfigError: if two points of different configs have one name.
    """
    merged: dict[str, Point] = {}
    for point in points:
        if any(point.config == other.config for other in merged.values()):
            continue
        if point.name in merged:
            raise ConfigError(f"two runs would be named {point.name}")
        merged[point.name] = point
    return list(merged.values())


def write_plan(points: Iterable[Point], folder: Path) -> None:
    """Adds the configs of all runs to the plan, for a report to count those to come.

    What an earlier sweep has planned in this folder stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan_file = folder / PLAN_FILE
    configs = json.loads(plan_file.read_text()) if plan_file.exists() else {}
    for point in points:
        configs[point.name] = point.planned_config(folder)
    write_json(plan_file, configs)
