"""What scripts/sweep.py does: the points of its flags, their folder, and their runs."""

import dataclasses
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from configs.plans import PLANS
from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import ConfigError
from nystromformer.lab.sweep.grid import (
    Base,
    Point,
    check_points,
    make_points,
    merged,
    no_twice,
    parse_grid,
)
from nystromformer.lab.sweep.local import check_minutes, run_locally
from nystromformer.lab.sweep.process import FAILURE_FILE
from nystromformer.lab.sweep.slurm import check_slurm, run_on_slurm
from nystromformer.lab.sweep.status import Status, all_done, state
from nystromformer.lab.workdir import CONFIG_FILE, open_workdir, read_json
from nystromformer.training.files import write_json

SWEEP_FILE = "sweep.json"  # every point that was asked for, and its flags
LOCK_FILE = "sweep.lock"
CONFIGS = Path(__file__).parents[3] / "configs"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The flags of scripts/sweep.py by their names; `slurm` has those of a job."""

    workdir: Path
    config: str | None  # FILE.py[:ATTENTION,PRESET]
    changes: dict[str, Any]  # as --config.group.key=value
    grid: list[str]
    seeds: int | None
    plan: list[str]
    preset: str | None
    tasks: list[str] | None
    data_dir: str | None
    executor: str
    max_parallel: int | None
    max_minutes: float | None
    retry: bool
    dry_run: bool
    slurm: dict[str, Any]

    def __call__(self) -> bool:
        """Runs what is left to run, or prints the commands; whether all is done.

        Raises:
          ConfigError: flags or points that cannot run, a folder that holds something
            else or in which a sweep is running, too few minutes.
          Interrupted: on a signal or at the end of the time, when all runs have saved.
        """
        started = time.monotonic()
        points = self.planned() if self.plan else self.gridded()
        self._check_executor()
        asked_before = self._asked_before()
        check_points(points, self.workdir)
        if self.dry_run:
            for point in points:
                print(shlex.join(point.command(self.workdir)))
            return True
        self.workdir.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.workdir / LOCK_FILE, timeout=0):
                # Each has its folder at once: so the report knows what is missing.
                asked = {point.name: point.flags for point in points}
                write_json(self.workdir / SWEEP_FILE, {**asked_before, **asked})
                for point in points:
                    open_workdir(self.workdir / point.name, point.config)
                self._run(points, started)
        except Timeout:
            raise ConfigError(f"another sweep is running in {self.workdir}") from None
        return all_done([self.workdir / point.name for point in points])

    def gridded(self) -> list[Point]:
        """The points of --config and --grid."""
        if self.config is None:
            raise ConfigError(
                f"name a --config, or a --plan: {', '.join(sorted(PLANS))}"
            )
        for name in ("preset", "tasks", "data_dir"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} is for a --plan; the --config says it")
        file, _, words = self.config.partition(":")
        base = Base(file, tuple(filter(None, words.split(","))), self.changes)
        return make_points([base], parse_grid(self.grid), self.seeds or 1)

    def planned(self) -> list[Point]:
        """The points of the plans, times those of --grid."""
        if self.config is not None:
            raise ConfigError("--config and --plan: name one of them")
        names = no_twice(self.plan, "--plan")
        return merged(self._points_of(PLANS[name]) for name in names)

    def _points_of(self, plan: Mapping[str, Any]) -> list[Point]:
        """Those of one plan, with what the flags say instead."""
        preset = self.preset or plan.get("preset", "paper")
        if {*preset.split(",")} & {*ATTENTIONS}:
            raise ConfigError(
                f"--preset={preset}: the plan names the attentions itself"
            )
        changes = {"task.data_dir": self.data_dir} if self.data_dir else {}
        tasks = list(plan["tasks"]) if self.tasks is None else self.tasks
        if not tasks:
            raise ConfigError(
                "--tasks names none; without it, all of the plan's are run"
            )
        if unknown := [x for x in no_twice(tasks, "--tasks") if x not in TASKS]:
            known = ", ".join(TASKS)
            raise ConfigError(f"unknown task {unknown[0]!r}; known: {known}")
        files = [os.path.relpath(CONFIGS / f"{task}.py") for task in tasks]
        bases = [Base(file, (preset,), changes) for file in files]
        grid = parse_grid(self.grid)
        own = {key for variant in plan["variants"] for key in variant}
        if taken := own & {*grid[0]}:
            raise ConfigError(f"--grid names {min(taken)}, which the plan sets itself")
        variants = [{**one, **other} for one in plan["variants"] for other in grid]
        return make_points(bases, variants, self.seeds or plan["seeds"])

    def _check_executor(self) -> None:
        """Raises ConfigError for flags that the executor cannot take, or no SLURM."""
        if self.executor == "slurm":
            check_slurm()
            return
        check_minutes(self.max_minutes)
        if given := [name for name, value in self.slurm.items() if value is not None]:
            raise ConfigError(f"--{given[0]} needs --executor=slurm")

    def _asked_before(self) -> dict[str, list[str]]:
        """The points that this folder was asked for, and their flags.

        Raises:
          ConfigError: a folder that holds something else.
        """
        folder, path = self.workdir, self.workdir / SWEEP_FILE
        if (folder / CONFIG_FILE).exists():
            raise ConfigError(f"{folder} is a run itself; name a folder for the sweep")
        before = read_json(path) if path.exists() else {}
        if not isinstance(before, dict):
            raise ConfigError(f"{path} is no list of points; name another folder")
        others = {x.name for x in folder.iterdir()} if folder.exists() else set()
        if not before and others - {SWEEP_FILE, LOCK_FILE}:
            raise ConfigError(
                f"{folder} is neither empty nor a sweep; name another folder"
            )
        return before

    def _run(self, points: list[Point], started: float) -> None:
        """Runs what is left to run, and keeps saying where that stands."""
        folder, minutes = self.workdir, self.max_minutes
        if self.retry:
            for point in points:
                (folder / point.name / FAILURE_FILE).unlink(missing_ok=True)
        status = Status(points, folder)
        left = [point for point in points if state(folder / point.name) == "waiting"]
        try:
            if self.executor == "slurm":
                asked = {**self.slurm, "array_parallelism": self.max_parallel}
                asked["gpus_per_node"] = asked.pop("gpus")
                parameters = {key: x for key, x in asked.items() if x is not None}
                run_on_slurm(left, folder, status, parameters, minutes)
            else:
                if left:
                    check_minutes(minutes, taken=(time.monotonic() - started) / 60)
                ends = None if minutes is None else started + 60 * minutes
                run_locally(left, folder, status, self.max_parallel, ends)
        finally:
            status.close()
