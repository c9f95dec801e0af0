"""Sweeps: a grid or a plan, times the seeds, here or as SLURM job arrays.

Each run is a process of train.py that writes to log.txt in its workdir. If the sweep
is killed, the current runs train on, and a new sweep leaves them alone.
"""

import dataclasses
import difflib
import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import submitit
from absl import flags
from flax.traverse_util import flatten_dict
from ml_collections import config_flags
from submitit.core.utils import FailedJobError

from nystromformer.config import Config, ConfigError
from nystromformer.experiments.experiment import Experiment, check_num_steps
from nystromformer.experiments.workdir import PLAN_FILE, is_locked, write_json
from nystromformer.training.interrupt import SIGNALS, Interrupted, StopFlag

TRAIN = Path(__file__).parents[2] / "scripts" / "train.py"
FAILURE_FILE = "failed.txt"  # the exit status and the last line of a run that failed
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
RESUMABLE = {0, *(128 + signum for signum in SIGNALS), *(-signum for signum in SIGNALS)}
Changes = Mapping[str, Any]  # config key, as in attention.num_landmarks -> value


@dataclasses.dataclass(frozen=True)
class Point:
    """One run: the name of its folder, its flags, and the point it starts from."""

    name: str
    flags: tuple[str, ...]
    config: Config
    source: str | None = None

    def command(self, folder: Path) -> list[str]:
        words = [sys.executable, str(TRAIN), *self.flags]
        if self.source:
            words.append(f"--config.train.init_from={folder / self.source}")
        return [*words, f"--workdir={folder / self.name}"]

    def planned_config(self, folder: Path) -> dict[str, Any]:
        """The groups that the run will write to its config.json."""
        groups = self.config.to_mapping()
        if self.source:
            source = str(folder / self.source)
            groups["train"]["init_from"] = source
            groups["overrides"]["train.init_from"] = source
        return groups


def parse_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """Every combination of `KEY=VALUE,VALUE` texts, the last key changing fastest."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not all([key, *values.split(",")]) or key in {*axes, "train.seed"}:
            rule = "each KEY=VALUE,VALUE once; seeds: --seeds"
            raise ConfigError(f"--grid={text}: {rule}")
        axes[key] = values.split(",")
    return [dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values())]


def make_points(
    files: Sequence[str],
    variants: Sequence[Changes],
    *,
    presets: str = "",
    changes: Changes | None = None,
    num_seeds: int = 1,
    load: Sequence[str] = (),
) -> list[Point]:
    """For each seed each variant on each config file; ConfigError if one cannot run.

    Args:
      files: FILE.py[:PRESET,…]; these presets are part of the names.
      variants: changes that are part of the names, where the config has the key; also
        `presets`, and `init_from`: the presets of the point whose weights it takes.
      presets, changes: of all points; changes in place of a variant's.
      num_seeds: seeds of each setting, the config's and the next.
      load: modules that the runs import.
    """
    points, known, changes = [], {"presets", "init_from"}, changes or {}
    imports = tuple(f"--load={module}" for module in load)
    for seed, variant, file in itertools.product(range(num_seeds), variants, files):
        try:
            point = _make_point(file, presets, variant, changes, seed)
            if not seed:
                check_num_steps(point.config.train)
                Experiment(point.config)
        except (flags.Error, OSError, TypeError, ValueError) as error:
            said = str(error).splitlines()[-1]  # above it: the traceback of a config
            raise ConfigError(f"{file.strip(':')}: {said}") from error
        points.append(dataclasses.replace(point, flags=imports + point.flags))
        groups = point.config.to_mapping()
        del groups["overrides"]
        known |= flatten_dict(groups, sep=".").keys()
    if unknown := sorted(set(changes).union(*variants) - known):
        near = difflib.get_close_matches(unknown[0], known) or sorted(known)
        raise ConfigError(f"no run has the key {unknown[0]}; known: {', '.join(near)}")
    return points


def _make_point(
    file: str, presets: str, variant: Changes, changes: Changes, seed: int
) -> Point:
    path, _, own = file.partition(":")
    used = {**variant, **changes}
    stage = ",".join(filter(None, [own, variant.get("presets")]))
    arg = ",".join(filter(None, [presets, stage, used.pop("attention.name", None)]))
    words = [f"--config={path}:{arg}"]
    preset = flatten_dict(_read_config(words), sep=".")
    used = {key: x for key, x in used.items() if key in preset}
    named = [key for key in variant if key in used]
    used["train.seed"] = seed + int(used.get("train.seed", preset["train.seed"]))
    words += [f"--config.{key}={value}" for key, value in used.items()]
    groups = _read_config(words)

    def name(*stages: str) -> str:
        chosen = [f"{x}={used[x]}".removeprefix("attention.") for x in named]
        parts = [groups["task"]["name"], groups["attention"]["name"], *stages, *chosen]
        text = "-".join([*filter(None, parts), f"seed{used['train.seed']}"])
        return re.sub(r"[^\w.+=-]", "_", text)

    after, source = variant.get("init_from"), None
    if after:
        groups["train"]["init_from"] = source = name(after)
    own = name(stage, f"init_from_{after}" if after else "")
    return Point(own, tuple(words), Config.from_mapping(groups), source)


def _read_config(words: Sequence[str]) -> dict[str, Any]:
    """Reads train.py's flags --config and --config.group.key as it does."""
    values, argv = flags.FlagValues(), ["train.py", *words]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    values(argv)
    overrides = config_flags.get_override_values(values["config"])
    return {**values.config.to_dict(), "overrides": overrides}


def merge(points: Iterable[Point]) -> list[Point]:
    """The points with equal configs once; ConfigError for two others of one name."""
    found: dict[str, Point] = {}
    for point in points:
        if all(point.config != other.config for other in found.values()):
            if point.name in found:
                raise ConfigError(f"two runs would be named {point.name}")
            found[point.name] = point
    return [*found.values()]


def write_plan(points: Iterable[Point], folder: Path) -> None:
    """Writes the configs of all runs, so that a report also counts those to come."""
    folder.mkdir(parents=True, exist_ok=True)
    configs = {point.name: point.planned_config(folder) for point in points}
    write_json(folder / PLAN_FILE, configs)


def state(workdir: Path) -> str:
    """The state of a run: "done", "failed", "waiting", or "running" elsewhere."""
    if (workdir / "result.json").exists():
        return "done"
    if is_locked(workdir):
        return "running"
    return "failed" if (workdir / FAILURE_FILE).exists() else "waiting"


def accelerators() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in visible.split(",") if name]
    listed = subprocess.getoutput("nvidia-smi -L")
    return re.findall(r"^GPU (\d+):", listed, re.MULTILINE)


class Job:
    """The process of one point; submitit may put it back into the queue."""

    def __init__(self, command: Sequence[str], workdir: Path):
        self.command, self.workdir = command, workdir
        self.process: Any = None  # of the subprocess, once it has started

    def start(self, **env: str) -> None:
        self.env, both = env, os.environ | env
        self.workdir.mkdir(parents=True, exist_ok=True)
        with open(self.workdir / "log.txt", "ab") as log:
            streams: Any = {"stdout": log, "stderr": log}
            self.process = subprocess.Popen(self.command, env=both, **streams)

    def finish(self) -> None:
        """Waits for its end, and says how it ended."""
        status, why = self.process.wait(), ""
        # Where the run goes on, or has ended, another process has the folder.
        if status not in RESUMABLE and state(self.workdir) == "waiting":
            log = (self.workdir / "log.txt").read_text(errors="replace")
            why = f"status {status}: " + log.strip().rpartition("\n")[2]
            (self.workdir / FAILURE_FILE).write_text(why)
        print(f"{self.workdir.name}: {why or state(self.workdir)}", flush=True)

    def __call__(self) -> None:
        jax.config.update("jax_platforms", "cpu")  # the GPU is for the run
        if state(self.workdir) == "waiting":
            self.start()
            self.finish()

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """Lets it save and end, for submitit to put it back into the queue."""
        if self.process:
            self.process.terminate()
            # The signal has interrupted `wait`, which holds the lock of another `wait`.
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(Job(self.command, self.workdir))


def run_locally(
    points: Sequence[Point], folder: Path, num_parallel: int | None = None
) -> None:
    """Runs the points in order: one for each GPU, or `num_parallel`, at a time.

    A point that starts from another one waits for it. Interrupted, once all have saved.
    """
    gpus = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in accelerators()] or [{}]
    num_parallel = num_parallel or len(gpus)
    if num_parallel > len(gpus) and PREALLOCATE not in os.environ:
        # Else the first run on a GPU takes most of its memory.
        gpus = [{**gpu, PREALLOCATE: "false"} for gpu in gpus]
    free = [gpus[place % len(gpus)] for place in range(num_parallel)]
    waiting, running = list(points), []
    with StopFlag() as stop:
        while (waiting or running) and stop.signum is None:
            for job in [x for x in running if x.process.poll() is not None]:
                job.finish()
                running.remove(job)
                free.append(job.env)
            pending = {x.name for x in waiting} | {x.workdir.name for x in running}
            for point in [x for x in waiting if x.source not in pending][: len(free)]:
                waiting.remove(point)
                job = Job(point.command(folder), folder / point.name)
                has_source = not point.source or state(folder / point.source) == "done"
                if has_source and state(job.workdir) == "waiting":
                    job.start(**free.pop(0))
                    running.append(job)
            time.sleep(0.2)
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    if stop.signum is not None:
        raise Interrupted(stop.signum)


def run_on_slurm(points: Sequence[Point], folder: Path, **parameters: Any) -> None:
    """Submits the points as job arrays; those that start from others wait for all.

    A job that runs out of its time saves, and goes back into the queue. The parameters
    are submitit's: partition, time, gpus_per_node, array_parallelism.
    """
    for program in ("sbatch", "srun"):
        if shutil.which(program) is None:
            raise ConfigError(f"--cluster=slurm, but this machine has no {program}")
    executor = submitit.SlurmExecutor(folder / "slurm", max_num_timeout=100)
    more: dict[str, Any] = {"requeue": True}
    parameters |= {"job_name": folder.name, "additional_parameters": more}
    parameters["signal_delay_s"] = 120  # from SLURM's warning to the end of the time
    stages = [x for x in points if not x.source], [x for x in points if x.source]
    for stage in filter(None, stages):
        jobs = [Job(point.command(folder), folder / point.name) for point in stage]
        executor.update_parameters(**parameters)
        try:
            array = executor.submit_array(jobs)[0].job_id.partition("_")[0]
        except FailedJobError as error:
            raise ConfigError(f"sbatch failed: {error}") from error
        more["dependency"] = f"afterany:{array}"
        print(f"submitted {len(jobs)} runs as job {array}; squeue shows them")
