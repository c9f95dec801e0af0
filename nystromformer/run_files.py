"""What reading a run takes: the names of its files, and of settings.

It takes neither JAX nor the model, and so this module imports none of them.
"""

from typing import Any

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
