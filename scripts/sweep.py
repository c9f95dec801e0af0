r"""Trains every run of a grid or a plan, each in its own folder in --workdir.

    python scripts/sweep.py --workdir=DIR --tasks=listops,text --preset=quick \
        --grid=attention.name=nystrom,softmax --grid=train.batch_size=16,32 --seeds=3
    python scripts/sweep.py --workdir=DIR --config=configs/listops.py:quick --grid=…
    python scripts/sweep.py --workdir=DIR --plan=table3 [--plan=landmarks] [--grid=…]

--config.group.key=value changes all runs. DIR in --config.train.init_from=DIR may hold
{attention} and {max_length}; each run puts in its own. --cluster=slurm submits runs;
with --dry_run it shows the script of the job, and without SLURM the commands.

--seeds_together trains all seeds of a setting in one process, by one program.

Run the same command again to resume. Finished runs are skipped, and so are failed ones
unless you pass --retry: failed.txt says why. Ctrl-C and --max_minutes let runs save.
SLURM gets a run that is still in its queue a second time: look at squeue first.

Exit status: 0 all done, or submitted; 1 some are not; 2 bad input; 130, 143, 140 and
142 stopped by Ctrl-C, SIGTERM, SIGUSR2 and --max_minutes.
"""

import start

start.prepare()

import os
import shlex
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags
from etils import epath

from configs.plans import PLANS
from lra_tasks.errors import DataError
from lra_tasks.paths import get_root
from lra_tasks.task import get_task
from nystromformer.config import TaskConfig
from nystromformer.errors import ConfigError, Interrupted
from nystromformer.experiments import cli
from nystromformer.experiments.sweep.launch import make_groups, run_locally
from nystromformer.experiments.sweep.points import (
    Point,
    Settings,
    drop_duplicates,
    group_command,
    make_points,
    parse_grid,
    write_plan,
)
from nystromformer.experiments.sweep.progress import (
    find_state,
    format_outcome,
    format_plan,
)
from nystromformer.experiments.sweep.slurm import (
    check_slurm,
    run_on_slurm,
    slurm_scripts,
)
from nystromformer.experiments.transfer import check_source, follow_source
from nystromformer.experiments.workdir import check_workdir
from nystromformer.run_files import CONFIG_FILE, FAILURE_FILE
from nystromformer.training.checkpoint import saved_steps

CONFIGS = os.path.relpath(Path(__file__).parents[1] / "configs")

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the sweep", required=True)
_CONFIG = flags.DEFINE_string("config", None, "FILE.py[:ATTENTION,PRESET]")
_PLAN = flags.DEFINE_multi_enum("plan", [], sorted(PLANS), "named sweep: configs/plans")
_TASKS = flags.DEFINE_list("tasks", [], "NAME[:PRESET] of files in configs/")
_PRESET = flags.DEFINE_string("preset", None, "PRESET[,PRESET] of all runs")
_GRID = flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE: a key and its values")
_SEEDS = flags.DEFINE_integer("seeds", None, "seeds of each setting", lower_bound=1)
_TOGETHER = flags.DEFINE_bool("seeds_together", False, "one process for all seeds")
_RETRY = flags.DEFINE_bool("retry", False, "run failed runs again")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print commands or script, and exit")
_PARALLEL = flags.DEFINE_integer("max_parallel", None, "default: here one a GPU", 1)
_MAX_MINUTES = flags.DEFINE_float("max_minutes", 0, "time limit; 0: none", 0)
_CLUSTER = flags.DEFINE_enum("cluster", None, ["slurm"], "submit the runs there")
_PARTITION = flags.DEFINE_string("partition", None, "slurm: partition")
_ACCOUNT = flags.DEFINE_string("account", None, "slurm: account that pays")
_QOS = flags.DEFINE_string("qos", None, "slurm: quality of service")
_CONSTRAINT = flags.DEFINE_string("constraint", None, "slurm: features of the machine")
_TIME = flags.DEFINE_integer("time", None, "slurm: minutes of each run", 5)
_GPUS = flags.DEFINE_integer("gpus", None, "slurm: GPUs of each run", 0)
_CPUS = flags.DEFINE_integer("cpus", None, "slurm: CPU cores of each run", 1)
_MEMORY = flags.DEFINE_integer("memory", None, "slurm: gigabytes of each run", 1)
_LINES = flags.DEFINE_multi_string("script_line", [], "slurm: further line of the job")
SLURM_FLAGS = (
    *("partition", "account", "qos", "constraint", "time"),
    *("gpus", "cpus", "memory", "script_line"),
)


def find_points(changes: Settings) -> list[Point]:
    """Returns the points of --config, --tasks or each --plan, times grid and seeds.

    Args:
      changes: config key -> value, of all runs.

    Raises:
      ConfigError: if the flags do not fit together, or a run could not start.
    """
    if bool(_CONFIG.value) == bool(_PLAN.value or _TASKS.value):
        raise ConfigError("give --config alone, or --tasks, --plan or both")
    grid = parse_grid(_GRID.value)
    _check_set_once("--grid", grid[0], {"--config": changes})
    config_file, _, config_presets = (_CONFIG.value or "").partition(":")
    plans = [PLANS[name] for name in _PLAN.value] or [{"variants": [{}]}]

    points = []
    for plan in plans:
        for variant in plan["variants"]:
            _check_set_once("--plan", variant, {"--grid": grid[0], "--config": changes})
        files = [config_file]
        if not _CONFIG.value:
            tasks = _TASKS.value or plan["tasks"]
            files = [_config_file(task) for task in tasks]
        presets = [config_presets, _PRESET.value, plan.get("preset")]
        # The grid changes each variant, in all its combinations.
        variants = [
            {**variant, **cell} for variant in plan["variants"] for cell in grid
        ]
        points += make_points(
            files,
            variants,
            presets=",".join(names for names in presets if names),
            changes=changes,
            num_seeds=_SEEDS.value or plan.get("seeds", 1),
            load=cli.loaded_modules(),
        )
    return drop_duplicates(points)


def _check_set_once(flag: str, keys: Iterable[str], others: Mapping[str, Any]) -> None:
    """Raises ConfigError if two flags set one key, of which one would have no effect.

    Args:
      flag: the flag that sets `keys`, config keys.
      others: flag -> the config keys that it sets.
    """
    for key in keys:
        for other, other_keys in others.items():
            if key in other_keys:
                raise ConfigError(
                    f"{flag} and {other} both set {key}; leave one of them out"
                )


def _config_file(task: str) -> str:
    """The config file of a task as in "glue:mrpc"."""
    name, _, presets = task.partition(":")
    return f"{CONFIGS}/{name}.py:{presets}"


def main(changes: Settings) -> None:
    """Runs, submits or prints the runs that wait.

    Args:
      changes: config key -> value, of all runs.
    """
    jax.config.update("jax_platforms", "cpu")  # the accelerators are for the runs
    if _CLUSTER.value and _MAX_MINUTES.value:
        raise ConfigError("--max_minutes is for runs on this machine: SLURM has --time")
    for name in SLURM_FLAGS:
        if flags.FLAGS[name].present and not _CLUSTER.value:
            raise ConfigError(f"--{name} is for SLURM: add --cluster=slurm")
    folder = cli.local_folder(_WORKDIR.value)
    points = find_points(changes)
    check_workdirs(points, folder)

    states_to_run = {"waiting", "failed"} if _RETRY.value else {"waiting"}
    points_to_run = [
        point for point in points if find_state(folder / point.name) in states_to_run
    ]
    groups = make_groups(points_to_run, folder, _TOGETHER.value)
    plan = format_plan(points, folder, retry=_RETRY.value, groups=groups)
    if _DRY_RUN.value:
        # What is not for a shell is a comment, so that all can be given to one.
        print("\n".join(f"# {line}" for line in plan.splitlines()))
        _print_jobs(groups, folder)
        return

    check_sources(points_to_run, points, folder)
    missing = {}
    if _CLUSTER.value:
        check_slurm()
    else:
        missing = find_missing_data(points_to_run, folder)
    if points_to_run and len(missing) == len(points_to_run):
        raise missing[points_to_run[0].name]
    for point in points_to_run:
        (folder / point.name / FAILURE_FILE).unlink(missing_ok=True)
    write_plan(points, folder)
    print(plan, flush=True)
    fail(missing, folder)
    if _CLUSTER.value:
        run_on_slurm(groups, folder, **_slurm_parameters())
        return
    try:
        _train_here(points, folder)
    except Interrupted as interruption:
        outcome = format_outcome(points, folder)
        print(f"{interruption}; {outcome}; the same command goes on")
        sys.exit(128 + interruption.signum)
    print(format_outcome(points, folder))
    states = {find_state(folder / point.name) for point in points}
    if "failed" in states:
        print(f"{FAILURE_FILE} in a run's folder says why; --retry runs it again")
    sys.exit(0 if states == {"done"} else 1)


def _print_jobs(groups: Sequence[Sequence[Point]], folder: Path) -> None:
    """Prints the commands of runs, or the scripts of the jobs of SLURM."""
    if not _CLUSTER.value:
        for group in groups:
            print(shlex.join(group_command(group, folder)))
        return
    for script in slurm_scripts(groups, folder, **_slurm_parameters()):
        print(script)


def check_workdirs(points: Sequence[Point], folder: Path) -> None:
    """Checks that no run of a different config is taken for one of the sweep.

    Raises:
      ConfigError: as in `check_workdir`.
    """
    for point in points:
        workdir = epath.Path(folder / point.name)
        config = point.config
        if (workdir / CONFIG_FILE).exists():
            config = follow_source(config, workdir)
        check_workdir(workdir, config)


def check_sources(
    points_to_run: Sequence[Point], points: Sequence[Point], folder: Path
) -> None:
    """Checks that the new runs of a sweep could start from what they name.

    A run that has begun no longer needs it, and one from a run of this sweep waits.

    Args:
      points_to_run: the points that wait.
      points: all points of the sweep.
      folder: the folder of the sweep.

    Raises:
      ConfigError: if `train.init_from` names no finished run, or a source is neither a
        point nor a finished run in the folder.
    """
    names = {point.name for point in points}
    for point in points_to_run:
        if saved_steps(folder / point.name):
            continue
        if point.source is None:
            if point.config.train.init_from:
                check_source(point.config.train.init_from)
        elif point.source not in names and find_state(folder / point.source) != "done":
            raise ConfigError(
                f"{point.name} starts from {point.source}, which this sweep does not "
                f"train and {folder} does not have: add a variant that trains it"
            )


def find_missing_data(
    points_to_run: Sequence[Point], folder: Path
) -> dict[str, DataError]:
    """Finds the runs whose official archive is missing, and downloads it if it can.

    Otherwise each run would, and fail for the same cause.

    Args:
      points_to_run: the points that wait.
      folder: the folder of the sweep.

    Returns:
      The name of each such point, and why its archive is not there.
    """
    error_of_data: dict[str, DataError | None] = {}
    missing = {}
    for point in points_to_run:
        if point.source:
            continue  # Its source may not be there yet, from which its tokenizer comes.
        config = follow_source(point.config, epath.Path(folder / point.name)).task
        key = repr(config)
        if key not in error_of_data:
            error_of_data[key] = _obtain_data(config)
        error = error_of_data[key]
        if error is not None:
            missing[point.name] = error
    return missing


def _obtain_data(config: TaskConfig) -> DataError | None:
    """Finds or downloads the archive of data that are not prepared; or says why not."""
    try:
        task = get_task(config.name, **config.options)
        if not task.folder(config.data_dir).exists():
            task.find_source(get_root(config.data_dir))
    except DataError as error:
        reason = str(error).removeprefix(f"{config.name}: ")
        return DataError(f"no data for the runs of {config.name}: {reason}")
    return None


def fail(missing: Mapping[str, DataError], folder: Path) -> None:
    """Marks runs as failed, and says each cause once."""
    for name, error in missing.items():
        workdir = folder / name
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / FAILURE_FILE).write_text(str(error), "utf-8")
    for error in dict.fromkeys(map(str, missing.values())):
        print(f"error: {error}", file=sys.stderr, flush=True)


def _slurm_parameters() -> dict[str, Any]:
    """The flags of SLURM that are given, by the names that submitit has for them."""
    parameters = {
        "partition": _PARTITION.value,
        "account": _ACCOUNT.value,
        "qos": _QOS.value,
        "constraint": _CONSTRAINT.value,
        "time": _TIME.value,
        "gpus_per_node": _GPUS.value,
        "cpus_per_task": _CPUS.value,
        "mem": f"{_MEMORY.value}GB" if _MEMORY.value else None,
        "setup": _LINES.value,
        "array_parallelism": _PARALLEL.value,
    }
    return {name: value for name, value in parameters.items() if value}


def _train_here(points: Sequence[Point], folder: Path) -> None:
    """Trains runs on this machine, until --max_minutes have passed."""
    signal.setitimer(signal.ITIMER_REAL, 60 * _MAX_MINUTES.value)
    run_locally(points, folder, _PARALLEL.value, _TOGETHER.value)


if __name__ == "__main__":
    cli.run(main, takes_changes=True)
