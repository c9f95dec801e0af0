"""The sweep of scripts/sweep.py: makes the points of its flags and runs them."""

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.plans import PLANS
from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.experiments.sweep.grid import (
    Base,
    Point,
    Variant,
    check_points,
    make_points,
    merged,
    parse_grid,
)
from nystromformer.experiments.sweep.local import run_locally
from nystromformer.experiments.sweep.process import FAILURE_FILE
from nystromformer.experiments.sweep.slurm import check_slurm, run_on_slurm
from nystromformer.experiments.sweep.status import Status, all_done, state
from nystromformer.experiments.workdir import is_locked, open_workdir, read_json
from nystromformer.training.files import write_json

SWEEP_FILE = "sweep.json"  # every point that was asked for, and its flags
LOCK_FILE = "sweep.lock"
CONFIGS = Path(__file__).parents[3] / "configs"


def sweep(asked: Any, config: str | None, changes: Variant) -> bool:
    """Runs the points that are not done, or prints their commands.

    Args:
      asked: the flags of scripts/sweep.py, by their names.
      config: the value of --config, FILE.py[:ATTENTION,PRESET].
      changes: config key -> value, of --config.group.key=value.

    Returns:
      Whether every point is done.

    Raises:
      ConfigError: flags or points that cannot run, a folder that holds something
        else or in which another sweep is running, too little time.
      Interrupted: on a signal or at the end of the time, when all runs have saved.
    """
    started, folder = time.monotonic(), Path(asked.workdir).expanduser()
    points = find_points(asked, config, changes)
    if asked.executor == "slurm":
        check_slurm()
    for name in ("partition", "time", "gpus"):
        if asked.executor != "slurm" and getattr(asked, name) is not None:
            raise ConfigError(f"--{name} needs --executor=slurm")
    file = folder / SWEEP_FILE
    before = read_json(file) if file.exists() else {}
    others = {x.name for x in folder.iterdir()} if folder.exists() else set()
    if not before and others - {SWEEP_FILE, LOCK_FILE}:
        raise ConfigError(f"{folder} is neither empty nor a sweep: name another folder")
    fit, left_out = check_points(points, folder)
    names = {point.name for point in fit}
    for point in [x for x in fit if x.source and x.source not in names]:
        left_out.append(f"{point.name} is skipped: {point.source} is not in the sweep")
        fit.remove(point)
    for line in left_out:
        print(f"warning: {line}", file=sys.stderr)
    if asked.dry_run:
        for point in fit:
            print(shlex.join(point.command(folder)))
        return True
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / LOCK_FILE, timeout=0):
            # Every point gets its folder now, so that the report lists all of them.
            write_json(file, {**before, **{x.name: x.flags for x in points}})
            for point in fit:
                # A run in progress may know its config better: num_epochs gives steps.
                if not is_locked(folder / point.name):
                    open_workdir(folder / point.name, point.config)
                if asked.retry:
                    (folder / point.name / FAILURE_FILE).unlink(missing_ok=True)
            _run(fit, folder, asked, started)
    except Timeout:
        raise ConfigError(f"another sweep is running in {folder}") from None
    return all_done([folder / point.name for point in fit]) and not left_out


def find_points(asked: Any, config: str | None, changes: Variant) -> list[Point]:
    """The points of --config and --grid, or of the plans, times those of --grid."""
    grid = parse_grid(asked.grid)
    if asked.plan:
        if config is not None:
            raise ConfigError("give either --config or --plan, not both")
        return merged(_points_of(PLANS[name], grid, asked) for name in asked.plan)
    if config is None:
        raise ConfigError(f"give a --config or a --plan: {', '.join(sorted(PLANS))}")
    for name in ("preset", "tasks", "data_dir"):
        if getattr(asked, name) is not None:
            raise ConfigError(f"--{name} needs a --plan; change the --config instead")
    file, _, words = config.partition(":")
    base = Base(file, tuple(filter(None, words.split(","))), changes)
    return make_points([base], grid, asked.seeds or 1)


def _points_of(plan: Variant, grid: list[Variant], asked: Any) -> list[Point]:
    """The points of one plan, changed by the flags."""
    # Both, as quick and mrpc; of the asked and the plan's the latter wins.
    preset = ",".join(filter(None, (asked.preset, plan.get("preset")))) or "paper"
    if {*preset.split(",")} & {*ATTENTIONS}:
        raise ConfigError(f"--preset={preset}: the plan already names the attentions")
    tasks = plan["tasks"] if asked.tasks is None else asked.tasks
    if unknown := [task for task in tasks if task not in TASKS]:
        known = ", ".join(TASKS)
        raise ConfigError(f"unknown task {unknown[0]!r}; known: {known}")
    changes = {"task.data_dir": asked.data_dir} if asked.data_dir else {}
    files = [os.path.relpath(CONFIGS / f"{task}.py") for task in tasks]
    bases = [Base(file, tuple(preset.split(",")), changes) for file in files]
    own = {key for variant in plan["variants"] for key in variant}
    if taken := own & {*grid[0]}:
        raise ConfigError(f"--grid names {min(taken)}, which the plan already sets")
    variants = [{**one, **other} for one in plan["variants"] for other in grid]
    return make_points(bases, variants, asked.seeds or plan["seeds"])


def _run(points: list[Point], folder: Path, asked: Any, started: float) -> None:
    """Runs the points that wait, and keeps showing the state of the sweep."""
    left = [point for point in points if state(folder / point.name) == "waiting"]
    status, minutes = Status(points, folder), asked.max_minutes
    try:
        if asked.executor == "slurm":
            job = {
                "partition": asked.partition,
                "time": asked.time,
                "gpus_per_node": asked.gpus,
                "array_parallelism": asked.max_parallel,
            }
            job = {key: value for key, value in job.items() if value is not None}
            first = [point for point in left if not point.source]
            then = [point for point in left if point.source]
            for stage in filter(None, (first, then)):  # an array begins in any order
                run_on_slurm(stage, folder, status, job, minutes)
        else:
            ends = None if minutes is None else started + 60 * minutes
            run_locally(left, folder, status, asked.max_parallel, ends)
    finally:
        status.bar.close()
