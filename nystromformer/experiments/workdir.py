"""The folder of a run: its config, which weights it has, what fits there, its lock."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath
from filelock import FileLock, Timeout
from flax.traverse_util import flatten_dict

from lra_tasks.task import default_options, task_class
from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.config import Config, default_values
from nystromformer.errors import ConfigError
from nystromformer.experiments.plugins import load_modules
from nystromformer.run_files import (
    CONFIG_FILE,
    LOCK_FILE,
    SETTINGS_WITHOUT_EFFECT,
    WEIGHTS_FILE,
    WEIGHTS_SHA256,
    read_json,
    read_result,
)
from nystromformer.training.devices import is_host_0
from nystromformer.validation import is_in_bucket

# A sweep, a shell or SLURM may write these before the run begins.
FILES_BEFORE_A_RUN = {LOCK_FILE}
SUFFIXES_BEFORE_A_RUN = {".txt", ".log", ".out", ".err"}
# Orbax takes the whole path for a pattern, and a backslash for a slash.
UNREADABLE_LETTERS = set("*?[\\")
SECONDS_TO_LOCK = 1.0  # `is_locked` of another process has the lock for a moment
# Settings that may change while a run is stopped.
NOT_COMPARED = SETTINGS_WITHOUT_EFFECT | {
    "task.source_dir",
    "preset",
    "train.position_repeats",  # It matters only where a run begins.
}
# Paths that are compared by their last part: the rest may have moved.
COMPARED_BY_NAME = ("train.init_from", "task.tokenizer")


def read_config(workdir: epath.Path) -> Config:
    """Reads the config of a run, and imports the modules that it names.

    Raises:
      ConfigError: if the folder holds no run, or its config is not of this version.
    """
    path = workdir / CONFIG_FILE
    if not path.exists():
        raise ConfigError(f"{workdir} is not a run: it has no {CONFIG_FILE}")
    groups = read_json(path)
    groups.pop(WEIGHTS_SHA256, None)
    try:
        load_modules(groups.get("load", ()))
        return Config.from_mapping(groups)
    except ValueError as error:  # ConfigError is one
        raise ConfigError(f"{path} cannot be used: {error}") from error


def read_weights_sha256(workdir: epath.Path) -> str | None:
    """Reads which weights belong to the config of a run.

    Returns:
      Their sha256, from config.json where they were imported or exported, or from
      result.json; None for a run that is not finished.
    """
    sha256 = read_json(workdir / CONFIG_FILE).get(WEIGHTS_SHA256)
    result = read_result(workdir)
    if sha256 is None and result is not None:
        sha256 = result.get("params_sha256")
    return sha256


def check_path(workdir: epath.Path) -> None:
    """Raises ConfigError for a path where orbax cannot read back what it saves."""
    if not UNREADABLE_LETTERS.isdisjoint(os.path.abspath(workdir)):
        raise ConfigError(
            f"checkpoints saved in {workdir} could not be read again: "
            "choose a path without *, ?, [ and \\"
        )


def check_new(workdir: epath.Path) -> None:
    """Checks that a run may begin in a folder, which need not exist.

    Raises:
      ConfigError: if it is a file, holds anything but logs, or its path does not work.
    """
    check_path(workdir)
    if not workdir.exists():
        return
    if not workdir.is_dir():
        raise ConfigError(f"the workdir {workdir} is a file: name a folder")
    for path in workdir.iterdir():
        is_log = path.suffix in SUFFIXES_BEFORE_A_RUN
        if path.name not in FILES_BEFORE_A_RUN and not is_log:
            raise ConfigError(
                f"{path} belongs to no run: choose a new or empty folder as workdir"
            )


def check_workdir(workdir: epath.Path, config: Config) -> None:
    """Checks that a run of this config may begin or go on in a folder.

    Nothing is changed there. A setting that the saved config does not have is newer,
    and compared by its default. Folders of data are not compared. Of another run that
    the config names only the last part of the path is compared, since it may have
    moved. If both sources of `init_from` can be read, their weights must be equal.

    Raises:
      ConfigError: if the folder holds no run, or a run of a different config; the
        message names the first key that differs.
    """
    if not (workdir / CONFIG_FILE).exists():
        check_new(workdir)
        return

    check_path(workdir)
    if (workdir / WEIGHTS_FILE).exists():
        raise ConfigError(
            f"{workdir} holds a model that was exported: name another workdir"
        )
    saved_config = read_config(workdir)
    saved_settings = compared_settings(saved_config.to_mapping())
    settings = compared_settings(config.to_mapping())
    if config.train.num_steps == 0:
        # num_epochs say how long it trains, and the saved run knows the steps.
        settings["train.num_steps"] = saved_settings["train.num_steps"]
    defaults = default_settings(saved_config.task.name, saved_config.attention.name)
    for option in task_class(saved_config.task.name).found_options:
        # Where it is left out the task finds it, and the saved run knows what it found.
        key = f"task.{option}"
        if not settings.get(key):
            settings[key] = saved_settings.get(key)
    for key in saved_settings | settings:
        saved_value = saved_settings.get(key, defaults.get(key))
        value = settings.get(key)
        if saved_value != value:
            raise ConfigError(
                f"{workdir} holds a run with another config: {key} is {saved_value!r} "
                f"there, {value!r} here; name another workdir"
            )
    _check_same_source(workdir, saved_config, config)


def _check_same_source(
    workdir: epath.Path, saved_config: Config, config: Config
) -> None:
    """Raises ConfigError if `init_from` is a different run of the same name."""
    saved_weights = _source_sha256(saved_config)
    weights = _source_sha256(config)
    if saved_weights and weights and saved_weights != weights:
        raise ConfigError(
            f"{workdir} holds a run that began with other weights: train.init_from is "
            f"{saved_config.train.init_from} there, {config.train.init_from} here; "
            "name another workdir"
        )


def _source_sha256(config: Config) -> str | None:
    """sha256 of the weights of the run that `init_from` names; None if unknown."""
    if not config.train.init_from:
        return None
    result = read_result(epath.Path(config.train.init_from).expanduser())
    return result["params_sha256"] if result else None


def compared_settings(groups: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that change a run's numbers, by flat keys, as JSON has them.

    Args:
      groups: a config, as in config.json.
    """
    copied_groups: dict[str, Any] = json.loads(json.dumps(groups))
    copied_groups.pop("overrides", None)  # their values stand in the groups
    settings: dict[str, Any] = flatten_dict(copied_groups, sep=".")
    for key in COMPARED_BY_NAME:
        if settings.get(key):
            settings[key] = Path(settings[key]).name
    for key in NOT_COMPARED:
        settings.pop(key, None)
    return settings


def default_settings(task: str, attention: str) -> dict[str, Any]:
    """Returns the defaults of the settings of a run.

    A run that lacks a setting was begun before there was any, and did what the default
    says.

    Args:
      task, attention: the names of its task and its attention. One that is not in the
        table, as in a report that has not loaded its module, adds no options.

    Returns:
      The defaults by keys such as "train.seed", in the types of JSON.
    """
    settings = {**default_values(), **default_options(task), "attention.by_layer": None}
    if attention in ATTENTIONS:
        for option, default in find_attention(attention).init_defaults().items():
            settings[f"attention.{option}"] = default
    return json.loads(json.dumps(settings))


def complete_settings(config: Config) -> dict[str, Any]:
    """Returns the settings of a config by flat keys, with defaults where it has none.

    Neither a config that an earlier version saved nor a config file has all options.
    """
    defaults = default_settings(config.task.name, config.attention.name)
    return {**defaults, **flatten_dict(config.to_mapping(), sep=".")}


@contextlib.contextmanager
def lock_workdir(workdir: epath.Path) -> Iterator[None]:
    """Makes the folder of a run, and keeps other processes out while it is entered.

    A new folder is deleted if nothing has been written to it. A bucket has no locks,
    and of several processes of one run the first one has the lock.

    Raises:
      ConfigError: if another process has the lock, or the folder cannot be written.
    """
    if is_in_bucket(workdir) or not is_host_0():
        yield
        return

    is_new = not workdir.exists()
    lock = FileLock(workdir / LOCK_FILE)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=SECONDS_TO_LOCK)
    except Timeout as error:
        raise ConfigError(
            f"another process is training in {workdir}; wait for its end, or give "
            "another --workdir"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the workdir {workdir} cannot be written: {error.strerror}; give another "
            "--workdir"
        ) from error

    try:
        yield
    finally:
        if is_new:
            _delete_if_unused(workdir)
        lock.release()


def _delete_if_unused(workdir: epath.Path) -> None:
    """Deletes a folder that has nothing but the lock in it."""
    if [path.name for path in workdir.iterdir()] == [LOCK_FILE]:
        # On NFS an open file keeps a name, and with it its folder. epath's rmdir would
        # delete what is in it.
        with contextlib.suppress(OSError):
            os.unlink(workdir / LOCK_FILE)
            os.rmdir(workdir)


def is_locked(workdir: Path) -> bool:
    """Returns whether a process trains in a folder; changes nothing there."""
    if not (workdir / LOCK_FILE).exists():
        return False
    try:
        with FileLock(workdir / LOCK_FILE).acquire(timeout=0.2):
            return False
    except Timeout:
        return True
