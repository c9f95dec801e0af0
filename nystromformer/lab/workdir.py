"""A run's folder: config.json and result.json, written whole and read strictly."""

import hashlib
import json
from typing import Any

from nystromformer.config import Config, ConfigError
from nystromformer.training.files import (
    METRICS_FILE,
    Folder,
    system_errors,
    write_json,
)

CONFIG_FILE = "config.json"
RESULT_FILE = "result.json"
RESULT_KEYS = {
    *("task", "attention", "seed", "best_step", "test_examples", "floors"),
    "params_sha256",
}


def read_json(path: Folder) -> Any:
    """A JSON file, or one line that says which file is broken."""
    with system_errors(path):
        content = path.read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON ({error})") from error


def open_workdir(workdir: Folder, config: Config) -> None:
    """Makes the folder with its config.json, or checks that the config is the same."""
    check_workdir(workdir, config)
    with system_errors(workdir):
        workdir.mkdir(parents=True, exist_ok=True)
        begun = (workdir / CONFIG_FILE).exists() and _has_saved(workdir)
    if not begun:
        write_json(workdir / CONFIG_FILE, config.to_mapping())


def check_workdir(workdir: Folder, config: Config) -> None:
    """Raises ConfigError where a run of this config may not live; changes nothing.

    Where a run has saved nothing yet, another may begin. Where the data lie may differ:
    a workdir moves between machines by copying.
    """
    with system_errors(workdir):
        if not _has_saved(workdir):
            return
        if not (workdir / CONFIG_FILE).exists():
            raise ConfigError(
                f"{workdir} holds checkpoints but no {CONFIG_FILE}: name another "
                "workdir, or delete it"
            )
    mapping, theirs = config.to_mapping(), read_config(workdir).to_mapping()
    for group, fields in mapping.items():
        keys = {*fields, *theirs[group]} - {"data_dir"}
        for key in sorted(keys, key=lambda key: (key != "name", key)):
            ours, other = fields.get(key), theirs[group].get(key)
            if ours != other:
                raise ConfigError(
                    f"{workdir} holds a run with another config: {group}.{key} is "
                    f"{other!r} there, {ours!r} here; name another workdir"
                )


def _has_saved(workdir: Folder) -> bool:
    """Whether there is anything that a run could go on from, or has found."""
    saved = (workdir / "checkpoints", workdir / "best")
    return (workdir / RESULT_FILE).exists() or any(
        folder.is_dir() and any(folder.iterdir()) for folder in saved
    )


def write_result(workdir: Folder, result: dict[str, Any]) -> None:
    """Writes what a finished run has found, sealed with its config and metrics."""
    files = {name: _file_sha256(workdir / name) for name in (CONFIG_FILE, METRICS_FILE)}
    sealed = {**result, "files_sha256": files}
    write_json(workdir / RESULT_FILE, {**sealed, "sha256": _sha256(sealed)})


def _sha256(result: dict[str, Any]) -> str:
    """sha256 (hex) of a result's JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(result, sort_keys=True).encode()).hexdigest()


def _file_sha256(path: Folder) -> str | None:
    """sha256 (hex) of a file, or None where there is none."""
    with system_errors(path):
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def read_result(workdir: Folder) -> dict[str, Any] | None:
    """What a finished run has found, or None where it is not finished.

    Raises:
      ConfigError: a bit of it, of its config or of its metrics is not what was written.
    """
    path = workdir / RESULT_FILE
    with system_errors(path):
        if not path.exists():
            return None
    result = read_json(path)
    if not _is_result(result):
        raise ConfigError(f"{path} is no result of this program; delete it")
    noted = result.pop("sha256", None)  # results of earlier versions have none
    if noted and noted != _sha256(result):
        raise ConfigError(f"{path} is damaged: copy it again, or delete it")
    for name, sha256 in (result.get("files_sha256", {}) if noted else {}).items():
        file = workdir / name
        if _file_sha256(file) not in (None, sha256):
            raise ConfigError(
                f"{file} is not the one that {RESULT_FILE} was made with: copy it "
                "again, or delete the folder and run again"
            )
    return result


def _is_result(found: Any) -> bool:
    """Whether it holds what every version has written."""
    if not isinstance(found, dict):
        return False
    metric = found.get("metric", "accuracy")
    return found.keys() >= {*RESULT_KEYS, f"validation_{metric}", f"test_{metric}"}


def read_config(workdir: Folder) -> Config:
    """The config of an existing workdir."""
    path = workdir / CONFIG_FILE
    with system_errors(path):
        found = path.is_file()
    if not found:
        raise ConfigError(f"{workdir} is no run: it has no {CONFIG_FILE}")
    try:
        return Config.from_mapping(read_json(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
