"""The folder of a run: config.json, result.json, and who may train there."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etils import epath
from filelock import FileLock, Timeout
from flax.traverse_util import flatten_dict

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.training.devices import is_host_0
from nystromformer.training.output import write_text

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
PLAN_FILE = "sweep.json"  # of a sweep's folder: the config of each run in it, by name
TOKENIZER_FILE = "tokenizer.json"  # of a run on sub-words
LOCK_FILE = "lock"
LOGS = {LOCK_FILE, ".txt", ".log", ".out", ".err"}  # may come before a run
NUMBERLESS = {"load", "task.data_dir", "task.num_workers"}  # they change no number
NUMBERLESS |= {"train.log_every", "train.checkpoint_every"}
NOT_COMPARED = NUMBERLESS | {"task.source_dir", "preset"}
FOLDERS = {"train.init_from", "task.tokenizer"}  # compared by their last parts


@contextlib.contextmanager
def lock_workdir(workdir: epath.Path) -> Iterator[None]:
    """Makes the folder, and locks it for the context; a bucket has no locks.

    A new folder is deleted if the context leaves nothing in it. ConfigError while
    another process has the lock.
    """
    if not is_host_0() or "://" in str(workdir):
        yield
        return
    is_new = not workdir.exists()
    workdir.mkdir(parents=True, exist_ok=True)
    lock = FileLock(workdir / LOCK_FILE)
    try:
        lock.acquire(timeout=1)  # `is_locked` elsewhere has it for a moment
    except Timeout as error:
        raise ConfigError(f"another process is training in {workdir}") from error
    try:
        yield
    finally:
        if is_new and [path.name for path in workdir.iterdir()] == [LOCK_FILE]:
            (workdir / LOCK_FILE).unlink()
            workdir.rmdir()
        lock.release()


def is_locked(workdir: Path) -> bool:
    """Whether a process trains in a folder; changes nothing there."""
    if not (workdir / LOCK_FILE).exists():
        return False
    try:
        with FileLock(workdir / LOCK_FILE).acquire(timeout=0.2):
            return False
    except Timeout:
        return True


def check_path(workdir: epath.Path) -> None:
    """Raises ConfigError for a path where orbax cannot read back what it saves.

    It takes the whole path for a pattern, and a backslash for a slash.
    """
    if set(os.path.abspath(workdir)) & set("*?[\\"):
        raise ConfigError(
            f"checkpoints saved in {workdir} could not be read again: "
            "choose a path without *, ?, [ and \\"
        )


def check_new(workdir: epath.Path) -> None:
    """Raises ConfigError if the folder holds anything but logs; it may not exist."""
    check_path(workdir)
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
    check_path(workdir)
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
