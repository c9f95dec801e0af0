"""Trains one model on one task, or goes on where that was stopped.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR
        [--config.group.key=value …] [--max_minutes=60]

The same command again goes on where a run was stopped: by SIGTERM (exit status 143),
Ctrl-C (130), a closed terminal (129) or after --max_minutes (142): all save first.
JAX_ENABLE_COMPILATION_CACHE=false keeps no compiled programs for the next start.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import jax
from absl import flags
from filelock import FileLock, Timeout
from jax.sharding import Mesh
from ml_collections import config_flags

from nystromformer.config import Config, ConfigError
from nystromformer.lab import cli, provenance
from nystromformer.lab.compilation_cache import keep_compiled_programs
from nystromformer.lab.distributed import join, together
from nystromformer.lab.objectives import shown
from nystromformer.lab.run import Experiment
from nystromformer.lab.transfer import start_from
from nystromformer.lab.workdir import (
    check_workdir,
    open_workdir,
    read_result,
    write_result,
)
from nystromformer.training.devices import is_first, make_mesh, wait_for_all
from nystromformer.training.files import Folder, is_local
from nystromformer.training.loop import Trainer

_CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py[:ATTENTION,PRESET]")
_WORKDIR = cli.define_workdir(
    "where the run lives, or gs://BUCKET/RUN; made if missing", buckets=True
)
_MAX_MINUTES = cli.define_max_minutes("save and stop after this time")
_SEQ_SHARDS = flags.DEFINE_integer(
    "seq_shards", 1, "devices that share one sequence; the rest share the batch", 1
)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    if _MAX_MINUTES.value:
        signal.setitimer(signal.ITIMER_REAL, 60 * _MAX_MINUTES.value)
    join()
    keep_compiled_programs()
    experiment = Experiment.from_config(Config.from_mapping(_CONFIG.value.to_dict()))
    with together():
        workdir = cli.folder(_WORKDIR)
        if is_first():
            check_workdir(workdir, experiment.config)
        result = read_result(workdir)
        wait_for_all("looked for a result")
        if result:
            print(f"{workdir} is finished; delete it to run again")
        print(summary(result or train(experiment, workdir)))


def train(experiment: Experiment, workdir: Folder) -> dict[str, Any]:
    """Trains to the end, from wherever the workdir stands, and writes the result.

    Nothing is written before the data, the devices and the memory are there.
    """
    config = experiment.config
    print(
        f"{config.task.name} with {config.attention.name}: "
        f"{experiment.num_params:,} parameters, {config.train.num_steps:,} steps of "
        f"{config.train.batch_size} on {provenance.device()}"
    )
    check_memory(experiment.num_params)
    source = start_from(config) if config.train.init_from else None
    mesh = mesh_of(experiment)
    splits = experiment.load()
    floors = experiment.learning.floors(experiment.task, splits)
    with opened(workdir, config):
        trainer = Trainer(
            experiment.make_model,
            experiment.objective,
            experiment.make_optimizer(),
            config.train,
            splits,
            workdir,
            mesh,
            start=source and (lambda fresh: source.carried_over(fresh, config)),
        )
        sessions = trainer.record.sessions
        if changed := provenance.note_session(sessions, trainer.step):
            print(f"since the last session: {', '.join(changed)}")
        result = {
            "task": config.task.name,
            "attention": config.attention.name,
            "seed": config.train.seed,
            "num_params": experiment.num_params,
            "objective": config.objective.name,
            "init_from_sha256": source and source.params_sha256,
            **trainer.fit(),
            "floors": floors,
            "processes": jax.process_count(),
            "mesh": dict(mesh.shape),
            **{key: sessions[-1][key] for key in ("device", "versions", "commit")},
            "sessions": sessions,
            "data_sha256": {
                name: split.content_hash() for name, split in splits.items()
            },
        }
        if is_first():
            write_result(workdir, result)
        trainer.finish()
    return result


def check_memory(num_params: int) -> None:
    """Raises ConfigError where the state of training alone cannot fit."""
    stats = jax.local_devices()[0].memory_stats() or {}
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = stats.get("bytes_limit", machine)
    needed = 16 * num_params  # float32: weights, gradient, Adam's two moments
    if needed > room:
        raise ConfigError(
            f"{num_params:,} parameters take {needed / 1e9:,.0f} GB to train, and here "
            f"are {room / 1e9:,.0f}: choose a smaller config.model"
        )


@contextlib.contextmanager
def opened(workdir: Folder, config: Config) -> Iterator[None]:
    """The workdir, made and locked by the first process for all of them.

    A bucket has no locks: that no other run writes there is for people to see to.
    """
    with contextlib.ExitStack() as stack:
        if is_first():
            if is_local(workdir):
                workdir.mkdir(parents=True, exist_ok=True)
                try:
                    stack.enter_context(FileLock(workdir / "lock", timeout=0))
                except Timeout:
                    raise ConfigError(
                        f"another process is training in {workdir}"
                    ) from None
            open_workdir(workdir, config)
        wait_for_all("opened the workdir")
        yield


def mesh_of(experiment: Experiment) -> Mesh:
    """All devices of all processes."""
    train, shards = experiment.config.train, _SEQ_SHARDS.value
    if shards > 1 and train.length_buckets > 1:
        raise ConfigError(
            f"--seq_shards={shards} takes sequences of one length: "
            "config.train.length_buckets must be 1"
        )
    size = train.batch_size // train.micro_batches
    try:
        return make_mesh(size, experiment.task.max_length, seq_shards=shards)
    except ValueError as error:
        raise ConfigError(
            f"{error}, or other devices (CUDA_VISIBLE_DEVICES)"
        ) from error


def summary(result: dict[str, Any]) -> str:
    """The result beside its floors, for people."""
    metric = result.get("metric", "accuracy")

    lines = [
        f"{result['task']} with {result['attention']}, seed {result['seed']}: best "
        f"validation {metric} {shown(metric, result[f'validation_{metric}'])} at step "
        f"{result['best_step']:,}",
        f"test {metric} {shown(metric, result[f'test_{metric}'])} "
        f"({result['test_examples']:,} examples)",
    ]
    for name, value in result["floors"].items():
        lines.append(f"  floor: {shown(metric, value):>6}  {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
