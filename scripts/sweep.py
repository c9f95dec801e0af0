"""Trains every point of a grid or a plan, each in a folder of its own.

    python scripts/sweep.py --workdir=DIR --config=configs/listops.py:quick \
        --grid=attention.name=nystrom,softmax --grid=attention.num_landmarks=16,32 \
        [--seeds=3] [--config.group.key=value …]
    python scripts/sweep.py --workdir=DIR --plan=table3 [--plan=landmarks] \
        [--preset=quick] [--tasks=listops,text] [--data_dir=DATA]

Several plans run one after another; a point that an earlier one has is not run again.
The same command goes on where it was stopped, here or where DIR was copied to: finished
points are skipped, failed ones only tried again with --retry. Ctrl-C and --max_minutes
let the runs save. Exit status: 0 all done, 1 some failed or, with SLURM, not finished;
2 bad input, or too few minutes; 130, 143, 142, 129 stopped by Ctrl-C, SIGTERM,
--max_minutes, a closed terminal.
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from absl import flags
from filelock import FileLock, Timeout
from ml_collections import config_flags

from configs.plans import PLANS
from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.sweep.grid import (
    Base,
    Point,
    check_points,
    make_points,
    merged,
    no_twice,
    parse_grid,
)
from nystromformer.lab.sweep.local import LEAST_MINUTES, minutes_left, run_locally
from nystromformer.lab.sweep.process import FAILURE_FILE
from nystromformer.lab.sweep.slurm import check_slurm, run_on_slurm
from nystromformer.lab.sweep.status import Status, all_done, state
from nystromformer.lab.workdir import CONFIG_FILE, open_workdir, read_json
from nystromformer.training.files import write_json

SWEEP_FILE = "sweep.json"  # every point that was asked for, and its flags
NOT_ALL_DONE = 1
LOCK_FILE = "sweep.lock"
ROOT = Path(__file__).parents[1]

_WORKDIR = cli.define_workdir("the sweep's folder; made if missing")
_CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py[:ATTENTION,PRESET]")
_GRID = flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE; may be repeated")
_SEEDS = flags.DEFINE_integer("seeds", None, "runs of each point", lower_bound=1)
_PLAN = flags.DEFINE_multi_enum(
    "plan", [], sorted(PLANS), "instead of --config; repeat"
)
_PRESET = flags.DEFINE_string("preset", None, "of the plan's tasks, if not the plan's")
_TASKS = flags.DEFINE_list("tasks", None, "instead of the plan's")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "where the plan's data lie")
_EXECUTOR = flags.DEFINE_enum("executor", "local", ["local", "slurm"], "where to run")
_MAX_PARALLEL = flags.DEFINE_integer(
    "max_parallel", None, "runs at a time; local: one an accelerator", lower_bound=1
)
_MAX_MINUTES = cli.define_max_minutes("save and stop then; slurm: each run")
_RETRY = flags.DEFINE_bool("retry", False, "try failed points again")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the commands and do nothing")
_PARTITION = flags.DEFINE_string("partition", None, "slurm: where")
_TIME = flags.DEFINE_integer("time", None, "slurm: minutes of a job", lower_bound=5)
_GPUS = flags.DEFINE_integer("gpus", None, "slurm: of each job", lower_bound=0)
flags.mark_flag_as_required("workdir")


def main() -> None:
    started = time.monotonic()
    jax.config.update("jax_platforms", "cpu")  # the accelerators are for the runs
    folder = Path(str(_WORKDIR.value)).expanduser()
    points = planned() if _PLAN.value else gridded()
    check_executor()
    check_folder(folder)
    check_points(points, folder)
    if _DRY_RUN.value:
        for point in points:
            print(shlex.join(point.command(folder)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK_FILE, timeout=0):
            register(points, folder)
            run(points, folder, started)
    except Timeout:
        raise ConfigError(f"another sweep is running in {folder}") from None
    if not all_done([folder / point.name for point in points]):
        sys.exit(NOT_ALL_DONE)


def gridded() -> list[Point]:
    """The points of --config and --grid."""
    if _CONFIG.value is None:
        raise ConfigError(f"name a --config, or a --plan: {', '.join(sorted(PLANS))}")
    for flag in (_PRESET, _TASKS, _DATA_DIR):
        if flag.value is not None:
            raise ConfigError(f"--{flag.name} is for a --plan; the --config says it")
    flag = flags.FLAGS["config"]
    file, _, words = config_flags.get_config_filename(flag).partition(":")
    changes = config_flags.get_override_values(flag)
    base = Base(file, tuple(filter(None, words.split(","))), changes)
    return make_points([base], parse_grid(_GRID.value), _SEEDS.value or 1)


def planned() -> list[Point]:
    """The points of the plans, times those of --grid."""
    if _CONFIG.value is not None:
        raise ConfigError("--config and --plan: name one of them")
    names = no_twice(list(_PLAN.value), "--plan")
    return merged(points_of(PLANS[name]) for name in names)


def points_of(plan: Mapping[str, Any]) -> list[Point]:
    """Those of one plan, with what the flags say instead."""
    preset = _PRESET.value or plan.get("preset", "paper")
    if {*preset.split(",")} & {*ATTENTIONS}:
        raise ConfigError(f"--preset={preset}: the plan names the attentions itself")
    changes = {"task.data_dir": _DATA_DIR.value} if _DATA_DIR.value else {}
    bases = []
    tasks = list(plan["tasks"]) if _TASKS.value is None else _TASKS.value
    if not tasks:
        raise ConfigError("--tasks names none; without it, all of the plan's are run")
    for task in no_twice(tasks, "--tasks"):
        if task not in TASKS:
            raise ConfigError(f"unknown task {task!r}; known: {', '.join(TASKS)}")
        file = os.path.relpath(ROOT / "configs" / f"{task}.py")
        bases.append(Base(file, (preset,), changes))
    grid = parse_grid(_GRID.value)
    if taken := {key for variant in plan["variants"] for key in variant} & {*grid[0]}:
        raise ConfigError(f"--grid names {min(taken)}, which the plan sets itself")
    variants = [{**one, **other} for one in plan["variants"] for other in grid]
    return make_points(bases, variants, _SEEDS.value or plan["seeds"])


def check_executor() -> None:
    """Raises ConfigError for flags that the executor cannot take, or no SLURM."""
    if _EXECUTOR.value == "slurm":
        check_slurm()
        return
    minutes = _MAX_MINUTES.value
    if minutes is not None and minutes < LEAST_MINUTES:
        raise ConfigError(
            f"--max_minutes={minutes:g}: no run is started with less than "
            f"{LEAST_MINUTES} left"
        )
    for flag in (_PARTITION, _TIME, _GPUS):
        if flag.value is not None:
            raise ConfigError(f"--{flag.name} needs --executor=slurm")


def check_folder(folder: Path) -> None:
    """Raises ConfigError for a folder that holds something else."""
    if (folder / CONFIG_FILE).exists():
        raise ConfigError(f"{folder} is a run itself; name a folder for the sweep")
    others = {x.name for x in folder.iterdir()} if folder.exists() else set()
    if not asked_before(folder) and others - {SWEEP_FILE, LOCK_FILE}:
        raise ConfigError(f"{folder} is neither empty nor a sweep; name another folder")


def asked_before(folder: Path) -> dict[str, list[str]]:
    """The points that this folder was asked for, and their flags."""
    path = folder / SWEEP_FILE
    before = read_json(path) if path.exists() else {}
    if not isinstance(before, dict):
        raise ConfigError(f"{path} is no list of points; name another folder")
    return before


def register(points: list[Point], folder: Path) -> None:
    """Adds the points to what this folder was asked for.

    Each gets its folder and config at once, so that the report knows what is missing.
    """
    asked = {point.name: point.flags for point in points}
    write_json(folder / SWEEP_FILE, {**asked_before(folder), **asked})
    for point in points:
        open_workdir(folder / point.name, point.config)


def run(points: list[Point], folder: Path, started: float) -> None:
    """Runs what is left to run, and keeps saying where that stands.

    Args:
      points: all of them.
      folder: the sweep's.
      started: when this command was, by time.monotonic(): its minutes run from there.

    Raises:
      ConfigError: the minutes are over before a run could start.
    """
    if _RETRY.value:
        for point in points:
            (folder / point.name / FAILURE_FILE).unlink(missing_ok=True)
    status = Status(points, folder)
    left = [point for point in points if state(folder / point.name) == "waiting"]
    minutes = _MAX_MINUTES.value
    try:
        if _EXECUTOR.value == "slurm":
            asked = {
                "partition": _PARTITION.value,
                "time": _TIME.value,
                "gpus_per_node": _GPUS.value,
                "array_parallelism": _MAX_PARALLEL.value,
            }
            parameters = {key: x for key, x in asked.items() if x is not None}
            run_on_slurm(left, folder, status, parameters, minutes)
        else:
            if left and minutes is not None:
                minutes = minutes_left(minutes, (time.monotonic() - started) / 60)
            run_locally(left, folder, status, _MAX_PARALLEL.value, minutes)
    finally:
        status.close()


if __name__ == "__main__":
    cli.run(main)
