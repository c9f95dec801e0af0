"""Trains one model on one task, or resumes a run that was stopped.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR
        [--config.group.key=value …] [--load=mine.py] [--max_minutes=60]
    python scripts/train.py --config=configs/listops.py:nystrom,quick --print_config

The first command prints the whole config and trains; the second only prints it.

Run the same command again to resume. SIGTERM (exit status 143), Ctrl-C (130), SIGUSR2
(140) and --max_minutes (142) save before they stop the run; before its first step there
is nothing to save. A single process keeps compiled programs for the next start, up to a
gigabyte in ~/.cache/nystromformer or the folder JAX_COMPILATION_CACHE_DIR, unless
JAX_ENABLE_COMPILATION_CACHE=false.

To train in several processes, start each by the same command with --distributed.
Outside SLURM and TPU pods add --coordinator=HOST:PORT --num_processes=4 --process_id=0.
All see the workdir; each reads the data from its own disk or a shared one.

--seeds=0,1,2 --workdir='DIR/seed{seed}' trains several seeds together on one device, by
one program, each in its own folder.
"""

import start

start.prepare()

import os
import signal
import sys
from collections.abc import Mapping

import jax
from absl import flags
from etils import epath

from nystromformer.errors import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.config_file import format_config, load_config
from nystromformer.experiments.experiment import build_experiment
from nystromformer.experiments.run import run_training, summarize
from nystromformer.experiments.run_seeds import run_seeds
from nystromformer.experiments.transfer import follow_source

_CONFIG = flags.DEFINE_string("config", None, "FILE.py[:ATTENTION,PRESET]")
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run")
_PRINT_CONFIG = flags.DEFINE_bool("print_config", False, "print the config and exit")
_MAX_MINUTES = flags.DEFINE_float("max_minutes", 0, "time limit; 0: none", 0)
_SEEDS = flags.DEFINE_list("seeds", None, "seeds to train together")
_SEQUENCE_PARALLELISM = flags.DEFINE_integer(
    "sequence_parallelism", 1, "devices for a sequence", 1
)
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "one of several processes")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "number of processes", 1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "number, from 0", 0)
flags.register_validator(
    "config",
    bool,
    message="give --config=FILE.py:ATTENTION,PRESET, as in "
    "--config=configs/listops.py:nystrom,quick",
)


def main(changes: Mapping[str, str | bool]) -> None:
    """Prints the config, trains and prints the result.

    Args:
      changes: key of the config -> the value that replaces the file's, as
        `cli.take_changes` returns it.
    """
    cli.end_on_signals()
    signal.setitimer(signal.ITIMER_REAL, 60 * _MAX_MINUTES.value)
    config = load_config(str(_CONFIG.value), changes, load=cli.loaded_modules())
    workdir = epath.Path(_WORKDIR.value).expanduser() if _WORKDIR.value else None
    if _PRINT_CONFIG.value:
        print(format_config(follow_source(config, workdir)))
        return
    if workdir is None:
        raise ConfigError("give --workdir=DIR, the folder of the run")

    if _SEEDS.value:
        train_together(changes)
        return
    if _DISTRIBUTED.value:
        join_processes()
    cli.use_compilation_cache()
    experiment = build_experiment(follow_source(config, workdir))
    result = run_training(experiment, workdir, _SEQUENCE_PARALLELISM.value)
    print(summarize(result))


def train_together(changes: Mapping[str, str | bool]) -> None:
    """Trains the seeds of --seeds, each in the workdir that has its number.

    Args:
      changes: as in `main`.
    """
    seeds = _SEEDS.value or []
    workdir = str(_WORKDIR.value)
    if _DISTRIBUTED.value or _SEQUENCE_PARALLELISM.value > 1:
        raise ConfigError(
            "--seeds trains on one device: leave out --distributed and "
            "--sequence_parallelism"
        )
    if "train.seed" in changes:
        raise ConfigError("--seeds and --config both set train.seed; leave one out")
    if "{seed}" not in workdir or len(set(seeds)) < len(seeds):
        raise ConfigError(
            f"--seeds={','.join(seeds)} --workdir={workdir}: give different "
            "seeds, and {seed} in the workdir, as in --workdir='DIR/seed{seed}'"
        )
    cli.use_compilation_cache()
    experiments = []
    workdirs = []
    for seed in seeds:
        seed_changes = {**changes, "train.seed": seed}
        config = load_config(str(_CONFIG.value), seed_changes, cli.loaded_modules())
        seed_workdir = epath.Path(workdir.replace("{seed}", seed)).expanduser()
        experiments.append(build_experiment(follow_source(config, seed_workdir)))
        workdirs.append(seed_workdir)
    run_seeds(experiments, workdirs)


def join_processes() -> None:
    """Joins the other processes of this run; all but the first print nothing."""
    try:
        jax.distributed.initialize(
            _COORDINATOR.value,
            _NUM_PROCESSES.value,
            _PROCESS_ID.value,
            heartbeat_timeout_seconds=30,  # a process that is silent for longer is gone
            shutdown_timeout_seconds=30,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the processes did not find each other: {error}") from error

    # Process 0 alone would read and write the cache.
    jax.config.update("jax_enable_compilation_cache", False)
    # jax.distributed has put a C handler under one of these signals. Python still knows
    # its own handler: setting it again puts it back.
    for signum in cli.SIGNALS:
        signal.signal(signum, signal.getsignal(signum))
    if jax.process_index():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open to the end


if __name__ == "__main__":
    cli.run(main, takes_changes=True)
