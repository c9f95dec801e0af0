"""The folder of a run: config.json and result.json, read strictly."""

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from etils import epath
from filelock import FileLock, Timeout
from flax.traverse_util import flatten_dict

from nystromformer.config import Config, ConfigError
from nystromformer.experiments import cli
from nystromformer.training.checkpoint import saved_steps
from nystromformer.training.devices import is_host_0
from nystromformer.training.files import (
    Folder,
    is_local,
    system_errors,
    write_json,
)
from nystromformer.training.metrics import METRICS_FILE

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
LOCK_FILE = "lock"
TOKENIZER_FILE = "tokenizer.json"  # of a run on sub-words
RESULT_KEYS = {  # what every version has written
    *("task", "attention", "seed", "best_step", "test_examples", "floors"),
    "params_sha256",
}


def find_folder(name: str | os.PathLike[str]) -> Folder:
    """The folder of this name, on a disk or in a bucket; it may not exist yet."""
    name = str(name)
    if "://" not in name:
        return Path(name).expanduser()
    if not re.match("gs://[^/]+/.", name):
        raise ConfigError(f"{name} is neither a folder nor gs://BUCKET/RUN")
    return epath.Path(name)


def read_json(path: Folder) -> Any:
    """Reads a JSON file; ConfigError names a broken one."""
    with system_errors(path):
        content = path.read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error})") from error


def lock_workdir(workdir: Folder) -> contextlib.AbstractContextManager[Any]:
    """A context in which the first process holds the folder's lock; makes the folder.

    A bucket has no locks: there the user has to keep other runs away.
    """
    if not is_local(workdir) or not is_host_0():
        return contextlib.nullcontext()
    workdir.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(workdir / LOCK_FILE).acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"another process is training in {workdir}") from error


def is_locked(workdir: Path) -> bool:
    """Whether another process trains there."""
    if not (workdir / LOCK_FILE).exists():
        return False
    try:
        FileLock(workdir / LOCK_FILE).acquire(timeout=0).lock.release()
    except Timeout:
        return True
    return False


def open_workdir(workdir: Folder, config: Config) -> None:
    """Writes config.json, or checks that the one there is the same."""
    if not check_workdir(workdir, config):
        write_json(workdir / CONFIG_FILE, config.to_mapping())


def check_workdir(workdir: Folder, config: Config) -> bool:
    """Whether a run of this config has saved something there; changes nothing.

    Where nothing is saved yet, another run may begin. Where the data, the source of the
    weights and the tokenizer lie may differ: a workdir moves between machines by
    copying, and holds a tokenizer.json of its own.

    Raises:
      ConfigError: another run has.
    """
    with system_errors(workdir):
        if not (
            (workdir / RESULT_FILE).exists()
            or (workdir / "best").exists()
            or saved_steps(workdir)
        ):
            return False
        if not (workdir / CONFIG_FILE).exists():
            raise ConfigError(
                f"{workdir} holds checkpoints but no {CONFIG_FILE}: name another "
                "workdir, or delete it"
            )
    configs = config, read_config(workdir)
    # By way of JSON, which has no tuples.
    flat = (json.loads(json.dumps(x.to_mapping())) for x in configs)
    ours, theirs = (flatten_dict(x, sep=".") for x in flat)
    ignored = {"task.data_dir"}
    if config.train.num_epochs:
        ignored.add("train.num_steps")
    for key in {**ours, **theirs}:
        here, there = ours.get(key), theirs.get(key)
        same = here == there
        if key == "train.init_from" and here and there:
            same = _same_source(str(here), str(there), workdir)
        if key == "task.tokenizer" and here not in ("bpe", "byte"):
            words = Path(str(here)).expanduser()
            if words.is_file():
                same = file_sha256(words) == file_sha256(workdir / TOKENIZER_FILE)
                there = TOKENIZER_FILE
        if not same and key not in ignored:
            raise ConfigError(
                f"{workdir} holds a run with another config: {key} is {there!r} there, "
                f"{here!r} here; name another workdir"
            )
    return True


def _same_source(here: str, there: str, workdir: Folder) -> bool:
    """Whether a run may have begun from `here`: its own config says `there`.

    They are of one name, and of one result as far as it is known.
    """

    def digest(folder: Folder, key: str) -> str | None:
        with contextlib.suppress(ConfigError, OSError):  # the source may be gone
            return (read_result(folder) or {}).get(key)

    if here == there or Path(here).name != Path(there).name:
        return here == there
    theirs = digest(workdir, "init_from_sha256")
    theirs = theirs or digest(find_folder(there), "params_sha256")
    return not theirs or digest(find_folder(here), "params_sha256") in (None, theirs)


def write_result(workdir: Folder, result: dict[str, Any]) -> None:
    """Writes the result of a run with hashes of itself, its config and its metrics."""
    names = (CONFIG_FILE, METRICS_FILE, TOKENIZER_FILE)
    files = {name: file_sha256(workdir / name) for name in names}
    sealed = {**result, "files_sha256": files}
    write_json(workdir / RESULT_FILE, {**sealed, "sha256": _sha256(sealed)})


def read_result(workdir: Folder) -> dict[str, Any] | None:
    """The result of a run, or None if it is not finished.

    Raises:
      ConfigError: the result, its config or its metrics have changed since.
    """
    path = workdir / RESULT_FILE
    with system_errors(path):
        if not path.exists():
            return None
    result = read_json(path)
    metric = result.get("metric", "accuracy") if isinstance(result, dict) else ""
    keys = {*RESULT_KEYS, f"validation_{metric}", f"test_{metric}"}
    if not metric or not keys <= result.keys():
        raise ConfigError(f"{path} is not a result of this program; delete it")
    noted = result.pop("sha256", None)  # results of earlier versions have none
    if noted and noted != _sha256(result):
        raise ConfigError(f"{path} is damaged: copy it again, or delete it")
    for name, sha256 in (result.get("files_sha256", {}) if noted else {}).items():
        if file_sha256(workdir / name) not in (None, sha256):
            raise ConfigError(
                f"{workdir / name} is not the one that {RESULT_FILE} was made with: "
                "copy it again, or delete the folder and run again"
            )
    return result


def _sha256(result: dict[str, Any]) -> str:
    """sha256 (hex) of a result's JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def file_sha256(path: Folder) -> str | None:
    """sha256 (hex) of a file, or None where there is none."""
    with system_errors(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def read_config(workdir: Folder) -> Config:
    """The config of an existing workdir."""
    path = workdir / CONFIG_FILE
    with system_errors(path):
        found = path.is_file()
    if not found:
        raise ConfigError(f"{workdir} is not a run: it has no {CONFIG_FILE}")
    try:
        mapping = read_json(path)
        cli.load_modules(mapping.get("load", ()))
        return Config.from_mapping(mapping)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
