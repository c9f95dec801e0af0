"""The folder of a run: config.json, result.json, and who may train there."""

import contextlib
import json
from pathlib import Path
from typing import Any

from etils import epath
from filelock import FileLock, Timeout
from flax.traverse_util import flatten_dict

from nystromformer.config import Config, ConfigError
from nystromformer.experiments import cli
from nystromformer.training.devices import is_host_0
from nystromformer.training.metrics import write_text

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
PLAN_FILE = "sweep.json"  # of a sweep's folder: the config of each run in it, by name
TOKENIZER_FILE = "tokenizer.json"  # of a run on sub-words
LOGS = {"lock", ".txt", ".log", ".out", ".err"}  # may come before a run
NUMBERLESS = {"load", "task.data_dir", "task.num_workers"}  # they change no number
NUMBERLESS |= {"train.log_every", "train.checkpoint_every"}
NOT_COMPARED = NUMBERLESS | {"task.source_dir", "preset"}
FOLDERS = {"train.init_from", "task.tokenizer"}  # compared by their last parts


def lock_workdir(workdir: epath.Path) -> contextlib.AbstractContextManager[Any]:
    """Makes the folder, and locks it for the context; a bucket has no locks."""
    if not is_host_0() or "://" in str(workdir):
        return contextlib.nullcontext()
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(workdir / "lock").acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"another process is training in {workdir}") from error


def check_new(workdir: epath.Path) -> None:
    """Raises ConfigError if the folder holds anything but logs; it may not exist."""
    for path in workdir.iterdir() if workdir.exists() else ():
        if not {path.name, path.suffix} & LOGS:
            raise ConfigError(f"{path} belongs to no run: name a new or empty workdir")


def check_workdir(workdir: epath.Path, config: Config) -> None:
    """Checks that a run of this config may begin or go on there; changes nothing.

    Data and other runs may have moved: their folders are not compared. ConfigError if
    it holds something else, or a run of another config: it names the first such key.
    """
    if not (workdir / CONFIG_FILE).exists():
        return check_new(workdir)
    saved, ours = (_comparable(x) for x in (read_config(workdir), config))
    if not config.train.num_steps:  # but num_epochs
        ours["train.num_steps"] = saved["train.num_steps"]
    for key in {**saved, **ours}:
        there, here = saved.get(key), ours.get(key)
        if there != here:
            changed = f"{key} is {there!r} there, {here!r} here; name another workdir"
            raise ConfigError(f"{workdir} holds a run with another config: {changed}")


def _comparable(config: Config) -> dict[str, Any]:
    """The keys of a config that change its numbers, by JSON's types."""
    groups = json.loads(json.dumps(config.to_mapping()))
    del groups["overrides"]
    flat: Any = flatten_dict(groups, sep=".")
    names = {x: Path(flat[x]).name for x in FOLDERS & flat.keys() if flat[x]}
    return {key: x for key, x in (flat | names).items() if key not in NOT_COMPARED}


def write_json(path: epath.PathLike, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_config(workdir: epath.Path) -> Config:
    """The config of a run, with its modules imported; ConfigError if there is none."""
    path = workdir / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{workdir} is not a run: it has no {CONFIG_FILE}")
    try:
        groups = json.loads(path.read_text())
        cli.load_modules(groups.get("load", ()))
        return Config.from_mapping(groups)
    except ValueError as error:  # of JSON, or a ConfigError
        raise ConfigError(f"{path} cannot be used: {error}") from error


def read_result(workdir: epath.Path) -> dict[str, Any] | None:
    """The result of a run, or None if it is not finished."""
    path = workdir / RESULT_FILE
    return json.loads(path.read_text()) if path.exists() else None
