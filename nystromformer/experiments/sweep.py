"""The runs of a sweep: a grid or a plan, times the seeds, as commands of train.py."""

import dataclasses
import difflib
import itertools
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import config_flags

from nystromformer.config import Config, ConfigError
from nystromformer.experiments.experiment import Experiment

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
Changes = Mapping[str, Any]  # config key, as in attention.num_landmarks -> value


@dataclasses.dataclass(frozen=True)
class Point:
    """One run: the name of its folder, its flags, and the point it starts from."""

    name: str
    flags: tuple[str, ...]
    config: Config
    source: str | None = None

    def command(self, folder: Path) -> list[str]:
        """The command that runs it, as a list of words."""
        words = [sys.executable, str(TRAIN), *self.flags]
        if self.source:
            words.append(f"--config.train.init_from={folder / self.source}")
        return [*words, f"--workdir={folder / self.name}"]


def parse_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of `KEY=VALUE,VALUE` texts, the last key changing fastest."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not all([key, *values.split(",")]) or key in {*axes, "train.seed"}:
            raise ConfigError(
                f"--grid={text}: each KEY=VALUE,VALUE once; seeds: --seeds"
            )
        axes[key] = values.split(",")
    return [dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values())]


def make_points(
    files: Sequence[str],
    variants: Sequence[Changes],
    *,
    presets: str = "",
    changes: Changes | None = None,
    num_seeds: int = 1,
    load: Sequence[str] = (),
) -> list[Point]:
    """For each seed each variant on each config file; ConfigError if one cannot run.

    Args:
      files: FILE.py[:PRESET,…]; these presets are part of the names.
      variants: changes that are part of the names, where the config has the key; also
        `presets`, and `init_from`: the presets of the point whose weights it takes.
      presets: ATTENTION,PRESET,… for all points.
      changes: for all points, in place of a variant's.
      num_seeds: seeds of each setting, the config's and the next.
      load: modules that the runs import.
    """
    points, known, changes = [], {"presets", "init_from"}, changes or {}
    imports = tuple(f"--load={module}" for module in load)
    for seed, variant, file in itertools.product(range(num_seeds), variants, files):
        try:
            point = _make_point(file, presets, variant, changes, seed)
            if not seed:
                Experiment(point.config)
        except (flags.Error, OSError, TypeError, ValueError) as error:
            said = str(error).splitlines()[-1]  # above it: the traceback of a config
            raise ConfigError(f"{file.strip(':')}: {said}") from error
        points.append(dataclasses.replace(point, flags=imports + point.flags))
        known |= flatten_dict(point.config.to_mapping(), sep=".").keys()
    for key in {*changes}.union(*variants) - known:
        near = difflib.get_close_matches(key, known) or sorted(known)
        raise ConfigError(f"no run has the key {key}; known: {', '.join(near)}")
    return points


def _make_point(
    file: str, presets: str, variant: Changes, changes: Changes, seed: int
) -> Point:
    """One point of `make_points`."""
    path, _, own = file.partition(":")
    used = {**variant, **changes}
    stage = ",".join(filter(None, [own, variant.get("presets")]))
    arg = ",".join(filter(None, [presets, stage, used.pop("attention.name", None)]))
    words = [f"--config={path}:{arg}"]
    preset = flatten_dict(_read_config(words).to_dict(), sep=".")
    used = {key: x for key, x in used.items() if key in preset}
    named = [key for key in variant if key in used]
    used["train.seed"] = seed + int(used.get("train.seed", preset["train.seed"]))
    words += [f"--config.{key}={value}" for key, value in used.items()]
    config = _read_config(words)

    def name(*stages: str) -> str:
        chosen = [f"{x}={used[x]}".removeprefix("attention.") for x in named]
        parts = [config.task.name, config.attention.name, *stages, *chosen]
        text = "-".join([*filter(None, parts), f"seed{used['train.seed']}"])
        return re.sub(r"[^\w.+=-]", "_", text)

    after, source = variant.get("init_from"), None
    if after:
        config.train.init_from = source = name(after)
    own = name(stage, f"init_from_{after}" if after else "")
    return Point(own, tuple(words), Config.from_mapping(config.to_dict()), source)


def _read_config(words: Sequence[str]) -> Any:
    """The ConfigDict of train.py's flags --config and --config.group.key."""
    values, argv = flags.FlagValues(), ["train.py", *words]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    values(argv)
    return values.config


def merge(points: Iterable[Point]) -> list[Point]:
    """The points with equal configs once; ConfigError for two others of one name."""
    found: dict[str, Point] = {}
    for point in points:
        if all(point.config != other.config for other in found.values()):
            if point.name in found:
                raise ConfigError(f"two runs would be named {point.name}")
            found[point.name] = point
    return [*found.values()]
