"""The names of a run's files and settings, readers of them, and writers.

This takes neither JAX nor the model, and so this module imports none of them.
"""

import contextlib
import json
from typing import Any

from nystromformer.errors import ConfigError

CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"  # a folder for each step, until the run is finished
BEST_FOLDER = "best"  # the weights of the best validation, or imported ones
WEIGHTS_FILE = "model.safetensors"  # in its place in the folder of scripts/export.py
RESULT_FILE = "result.json"  # a run that is finished has it
FAILURE_FILE = "failed.txt"  # why a run of a sweep, or of several seeds, has failed
LOCK_FILE = "lock"  # the process that trains there holds it
PLAN_FILE = "sweep.json"  # in the folder of a sweep: the config of each run, by name

# A key of config.json, where the weights beside it stay as they are.
WEIGHTS_SHA256 = "weights_sha256"

# Runs that differ in these settings alone have equal numbers.
SETTINGS_WITHOUT_EFFECT = frozenset(
    {
        "load",
        "task.data_dir",
        "task.num_workers",
        "train.log_every",
        "train.checkpoint_every",
    }
)


def has_imported_weights(workdir: Any) -> bool:
    """Returns whether the weights below a path were not trained there.

    They were imported or exported.
    """
    has_weights = any((workdir / name).exists() for name in (BEST_FOLDER, WEIGHTS_FILE))
    return has_weights and not (workdir / METRICS_FILE).exists()


def read_result(workdir: Any) -> dict[str, Any] | None:
    """Reads the result of a run; returns None if it is not finished.

    Raises:
      ConfigError: if the file is damaged, or has no score of a run.
    """
    path = workdir / RESULT_FILE
    if not path.exists():
        return None
    result = read_json(path)
    if f"test_{result.get('metric')}" not in result:
        raise ConfigError(
            f"{path} is not the result of a run, it has no test score: copy this "
            "folder again, or run the command that wrote it with a new folder"
        )
    return result


def complete_lines(path: Any) -> list[bytes]:
    """The lines of a file that end in a newline, but not half a line behind them.

    A run may be writing the file, or was killed as it wrote.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    return lines


def write_text(path: Any, text: str) -> None:
    """Writes a file as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Any, content: bytes) -> None:
    """Writes a file as a whole or not at all; the OSError of a disk names it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        # A new folder with this file would be taken for that of something else.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if error.errno is not None:  # A bucket's errors are words alone.
            error.filename = str(path)
        raise


def write_json(path: Any, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def read_json(path: Any) -> dict[str, Any]:
    """Reads a file of a run that is a JSON object.

    Raises:
      ConfigError: if it is damaged.
    """
    return parse_json(path.read_bytes(), path)


def parse_json(text: bytes | str, path: Any) -> dict[str, Any]:
    """Parses a JSON object that stands in a file of a run.

    Raises:
      ConfigError: if it is damaged.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content
    except ValueError as error:  # of JSON, or of bytes that are no text
        raise ConfigError(
            f"{path} cannot be used, it is cut short or changed ({error}): copy this "
            "folder again, or run the command that wrote it with a new folder"
        ) from None
