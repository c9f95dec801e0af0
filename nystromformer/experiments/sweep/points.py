"""The runs of a sweep: a grid or a plan, times the seeds, as points with names.

sweep.json in the folder of the sweep has the config of each.
"""

import dataclasses
import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from flax.traverse_util import flatten_dict

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments.config_file import (
    check_values,
    load_config,
    read_settings,
)
from nystromformer.experiments.experiment import build_experiment
from nystromformer.experiments.run_seeds import check_together
from nystromformer.run_files import PLAN_FILE, read_json, write_json
from nystromformer.training.seeds import find_common_step

TRAIN = Path(__file__).parents[3] / "scripts" / "train.py"
# A variant may have these keys, which are not keys of a config.
VARIANT_KEYS = frozenset({"presets", "init_from"})

Settings = Mapping[str, Any]  # config key, as in attention.num_landmarks -> value


@dataclasses.dataclass(frozen=True)
class Point:
    """One run of a sweep.

    name: the name of its folder in the sweep's folder.
    flags: the flags of train.py, all but --workdir and the source.
    config: what these flags say; `train.init_from` is the name of the source.
    source: the name of the point whose best weights it starts from.
    """

    name: str
    flags: tuple[str, ...]
    config: Config
    source: str | None = None

    def command(self, folder: Path) -> list[str]:
        """Returns the command that trains it in the sweep's folder."""
        command = [sys.executable, str(TRAIN), *self.flags]
        if self.source:
            command.append(f"--config.train.init_from={folder / self.source}")
        return [*command, f"--workdir={folder / self.name}"]

    def planned_config(self, folder: Path) -> dict[str, Any]:
        """Returns the groups that the run will write to its config.json."""
        groups = self.config.to_mapping()
        if self.source:
            source = str(folder / self.source)
            groups["train"]["init_from"] = source
            groups["overrides"]["train.init_from"] = source
        return groups


def group_seeds(points: Iterable[Point], folder: Path) -> list[list[Point]]:
    """Groups the runs that one process can train together.

    Args:
      points: runs that wait.
      folder: the folder of the sweep.

    Raises:
      ConfigError: if the config of a group does not allow it.
    """
    groups: list[list[Point]] = []
    for point in points:
        fitting = (group for group in groups if _fits(point, group, folder))
        group = next(fitting, None)
        if group is None:
            groups.append([point])
            continue
        try:
            check_together(point.config)
        except ConfigError as error:
            raise ConfigError(f"--seeds_together: {point.name}: {error}") from error
        group.append(point)
    return groups


def _fits(point: Point, group: Sequence[Point], folder: Path) -> bool:
    """Whether a run differs from those of a group in the seed alone.

    They must also have begun together, or not at all; and one that starts from another
    run of the sweep fits to none.
    """
    if point.source or _shared_flags(point) != _shared_flags(group[0]):
        return False
    workdirs = [folder / member.name for member in (*group, point)]
    return find_common_step(workdirs) is not None


def _shared_flags(point: Point) -> list[str]:
    """The flags of a point but for its seed."""
    return [x for x in point.flags if not x.startswith("--config.train.seed=")]


def group_command(group: Sequence[Point], folder: Path) -> list[str]:
    """Returns the command that trains a group of points in the sweep's folder."""
    first = group[0]
    if len(group) == 1:
        return first.command(folder)
    seeds = [str(point.config.train.seed) for point in group]
    name = first.name.removesuffix(seeds[0]) + "{seed}"
    return [
        *(sys.executable, str(TRAIN), *_shared_flags(first)),
        *(f"--seeds={','.join(seeds)}", f"--workdir={folder / name}"),
    ]


def parse_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """Combines the values of several keys in every way, the last changing fastest.

    Args:
      texts: keys with their values, as in "attention.num_landmarks=8,16".

    Raises:
      ConfigError: for a text of a different form, a key given twice, and seeds.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, value_text = text.partition("=")
        values = value_text.split(",")
        if key == "train.seed":
            raise ConfigError(f"--grid={text}: for seeds take --seeds")
        if not key or not all(values):
            raise ConfigError(f"--grid={text}: give KEY=VALUE,VALUE")
        if key in axes:
            raise ConfigError(
                f"--grid={text}: {key} is given twice; put all its values into one "
                "--grid"
            )
        axes[key] = values

    combinations = itertools.product(*axes.values())
    return [dict(zip(axes, values, strict=True)) for values in combinations]


def make_points(
    files: Sequence[str],
    variants: Sequence[Settings],
    *,
    presets: str = "",
    changes: Settings | None = None,
    num_seeds: int = 1,
    load: Sequence[str] = (),
) -> list[Point]:
    """Makes a point for each seed, variant and config file.

    Args:
      files: FILE.py[:PRESET,…]; these presets are part of the names.
      variants: changes that are part of the names, where the config has the key. A
        variant may also set `presets`, and `init_from`, the presets of the point whose
        weights it starts from.
      presets: the presets of all points.
      changes: settings of all points, which override a variant's. In `train.init_from`,
        {attention} and {max_length} are replaced by the point's.
      num_seeds: seeds of each setting, the config's and the next.
      load: modules that the runs import.

    Raises:
      ConfigError: if one of the runs could not start, or no run has a changed key.
    """
    changes = changes or {}
    config_keys: set[str] = set()
    points = []
    for seed, variant, file in itertools.product(range(num_seeds), variants, files):
        try:
            point = _make_point(
                file=file,
                presets=presets,
                variant=variant,
                changes=changes,
                seed=seed,
                load=load,
            )
            if seed == 0:  # further seeds differ in nothing that is checked
                build_experiment(point.config)  # It raises ConfigError.
        except ValueError as error:
            raise ConfigError(f"{file.strip(':')}: {error}") from error
        points.append(point)
        config_keys |= _flat_keys(point.config)

    variant_keys = set().union(*variants) - VARIANT_KEYS
    unknown_keys = sorted(variant_keys.union(changes) - config_keys)
    if unknown_keys:
        key = unknown_keys[0]
        similar_keys = difflib.get_close_matches(key, config_keys)
        similar_keys = similar_keys or sorted(config_keys)
        raise ConfigError(f"no run has the key {key}; known: {', '.join(similar_keys)}")
    return points


def _make_point(
    *,
    file: str,
    presets: str,
    variant: Settings,
    changes: Settings,
    seed: int,
    load: Sequence[str],
) -> Point:
    """The point of a variant on a config file; `seed` is added to the config's."""
    path, _, file_presets = file.partition(":")
    settings = {**variant, **changes}
    # The attention and the presets are words behind the name of the file.
    attention = settings.pop("attention.name", None)
    stage = _join(file_presets, variant.get("presets"))
    config_file = f"{path}:{_join(presets, stage, attention)}"
    defaults = read_settings(config_file)
    check_values(settings, defaults)
    flag_values = _flag_values(settings, defaults, seed)
    config = load_config(config_file, flag_values, load)

    source = None
    stages = [stage]
    source_presets = variant.get("init_from")
    if source_presets:
        source = _make_point(
            file=file,
            presets=presets,
            variant={**variant, "presets": source_presets, "init_from": None},
            changes=changes,
            seed=seed,
            load=load,
        )
        stages.append(f"init_from_{source_presets}")
        train = dataclasses.replace(config.train, init_from=source.name)
        config = dataclasses.replace(config, train=train)

    flags = [f"--load={module}" for module in load]
    flags.append(f"--config={config_file}")
    flags.extend(f"--config.{key}={value}" for key, value in flag_values.items())
    named_settings = _named_settings(settings, variant, flag_values, source)
    return Point(
        name=_make_name(config, stages, named_settings),
        flags=tuple(flags),
        config=config,
        source=source.name if source else None,
    )


def _named_settings(
    settings: Settings, variant: Settings, flag_values: Settings, source: Point | None
) -> dict[str, Any]:
    """The settings in a point's name: set by its variant, and a key of its config.

    A key that only the source has counts too: two points may differ in it alone. A key
    that the variant does not set is in no name, since all points share its value.

    Args:
      settings: what the variant sets, and the sweep for all points.
      variant: what the variant sets.
      flag_values: the values of the point's flags, whose keys its config has.
      source: the point that it starts from.
    """
    config_keys = set(flag_values)
    if source:
        config_keys |= _flat_keys(source.config)
    named_keys = config_keys & variant.keys()
    values = {**settings, **flag_values}
    return {key: value for key, value in values.items() if key in named_keys}


def _flag_values(settings: Settings, defaults: Settings, seed: int) -> dict[str, Any]:
    """The values of a point's flags: those whose key its config has, and its seed."""
    flag_values = {key: value for key, value in settings.items() if key in defaults}
    if "train.init_from" in flag_values:
        flag_values["train.init_from"] = _fill_placeholders(
            flag_values["train.init_from"], {**defaults, **flag_values}
        )
    first_seed = int(flag_values.get("train.seed", defaults["train.seed"]))
    flag_values["train.seed"] = first_seed + seed
    return flag_values


def _fill_placeholders(folder: str, settings: Settings) -> str:
    """Puts a point's settings into a folder's name, as in "runs/{attention}"."""
    folder = folder.replace("{attention}", str(settings["attention.name"]))
    return folder.replace("{max_length}", str(settings["task.max_length"]))


def _flat_keys(config: Config) -> set[str]:
    """The keys of a config, as in "train.seed"."""
    groups = config.to_mapping()
    del groups["overrides"]
    return set(flatten_dict(groups, sep="."))


def _join(*words: str | None) -> str:
    return ",".join(word for word in words if word)


def _make_name(config: Config, stages: Iterable[str], settings: Settings) -> str:
    """The name of a point, as in "listops-nystrom-num_landmarks=16-seed0".

    Letters that a file system may refuse become "_".

    Args:
      config: the config of the point.
      stages: words between the attention and the settings; empty ones are left out.
      settings: those that the name has.
    """
    parts = [config.task.name, config.attention.name]
    parts.extend(stage for stage in stages if stage)
    for key, value in settings.items():
        parts.append(f"{key}={value}".removeprefix("attention."))
    parts.append(f"seed{config.train.seed}")
    return re.sub(r"[^\w.+=-]", "_", "-".join(parts))


def drop_duplicates(points: Iterable[Point]) -> list[Point]:
    """Leaves one point for each config, the first.

    Raises:
      ConfigError: if two points of different configs have one name.
    """
    points_by_name: dict[str, Point] = {}
    for point in points:
        if any(point.config == other.config for other in points_by_name.values()):
            continue
        if point.name in points_by_name:
            raise ConfigError(
                f"two runs of different settings would be named {point.name}: sweep "
                "them apart, each in its own --workdir, or name the setting in --grid"
            )
        points_by_name[point.name] = point
    return list(points_by_name.values())


def write_plan(points: Iterable[Point], folder: Path) -> None:
    """Adds the configs of all runs to the plan, for a report to count those to come.

    What an earlier sweep has planned in this folder stays.

    Raises:
      ConfigError: if the plan that is there is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan_file = folder / PLAN_FILE
    # Another sweep may begin here just now.
    with FileLock(folder / f"{PLAN_FILE}.lock"):
        configs = read_json(plan_file) if plan_file.exists() else {}
        for point in points:
            configs[point.name] = point.planned_config(folder)
        write_json(plan_file, configs)
