"""One session of a run: checks, lock, training and result."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from lra_tasks.split import Split
from nystromformer.config import ConfigError
from nystromformer.experiments import provenance
from nystromformer.experiments.objectives import shown
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.transfer import carried_over, check_source, find_source
from nystromformer.experiments.workdir import (
    TOKENIZER_FILE,
    check_workdir,
    lock_workdir,
    open_workdir,
    read_result,
    write_result,
)
from nystromformer.training.checkpoint import saved_steps, weights_sha256
from nystromformer.training.devices import is_host_0, make_mesh, sync_hosts
from nystromformer.training.files import Folder, system_errors, write_bytes
from nystromformer.training.loop import Trainer


def keep_compiled_programs() -> None:
    """Lets JAX keep what it compiles, up to a gigabyte, in ~/.cache/nystromformer.

    JAX_COMPILATION_CACHE_DIR names another folder; JAX_ENABLE_COMPILATION_CACHE=false
    switches it off. A folder for each kind of processor, which JAX's own key leaves
    out: in a home of several machines a program for one may crash the other.
    """
    if jax.config.values["jax_compilation_cache_dir"]:
        return
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    processor = hashlib.sha256(features.encode()).hexdigest()[:8]
    folder = f"~/.cache/nystromformer/{platform.machine()}-{processor}"
    jax.config.update("jax_compilation_cache_dir", os.path.expanduser(folder))
    jax.config.update("jax_compilation_cache_max_size", 2**30)


def finish(
    experiment: Experiment, workdir: Folder, sequence_parallelism: int
) -> dict[str, Any]:
    """The result of a run: read from the workdir, or by training to the end."""
    if is_host_0():
        check_workdir(workdir, experiment.config)
    result = read_result(workdir)
    sync_hosts("looked for a result")
    if result:
        print(f"{workdir} is finished; delete it to run again")
    return result or train(experiment, workdir, sequence_parallelism)


def train(
    experiment: Experiment, workdir: Folder, sequence_parallelism: int
) -> dict[str, Any]:
    """Trains to the end, from the state of the workdir, and writes the result.

    Nothing is written before data, devices and memory have been checked.
    """
    config = experiment.config
    print(
        f"{config.task.name} with {config.attention.name}: "
        f"{experiment.num_params:,} parameters, {config.train.num_steps:,} steps of "
        f"{config.train.batch_size} on {provenance.device()}"
    )
    check_memory(experiment.num_params)
    source = (
        None if saved_steps(workdir) else find_source(config)
    )  # later it may be gone
    mesh = mesh_of(experiment, sequence_parallelism)
    splits = experiment.load()
    experiment = experiment.on(splits["train"].num_examples)
    if config.train.num_epochs:
        config = experiment.config
        print(f"{config.train.num_epochs:g} epochs: {config.train.num_steps:,} steps")
    if source:
        check_source(source, experiment)
    with lock_workdir(workdir):
        if result := read_result(workdir):  # of a process that has just ended
            return result
        if is_host_0():
            open_workdir(workdir, config)
        sync_hosts("opened the workdir")
        trainer = Trainer(
            experiment.make_model,
            experiment.objective,
            experiment.make_optimizer(),
            config.train,
            splits,
            workdir,
            mesh,
            start=source and (lambda fresh: carried_over(source, fresh, experiment)),
            data_sha256={name: x.content_hash for name, x in splits.items()},
        )
        if is_host_0():
            keep_vocabulary(workdir, experiment)
        if source:
            trainer.run_state.init_from_sha256 = weights_sha256(source.weights)
        sessions = trainer.run_state.sessions
        if changed := provenance.note_session(sessions, trainer.step):
            print(f"changed since the last session: {', '.join(changed)}")
        found = trainer.fit()
        result = described(found, experiment, splits, mesh, sessions)
        if is_host_0():
            write_result(workdir, result)
        trainer.delete_checkpoints()
    return result


def described(
    found: dict[str, Any],
    experiment: Experiment,
    splits: dict[str, Split],
    mesh: Mesh,
    sessions: list[dict[str, Any]],
) -> dict[str, Any]:
    """What training has found, with what was run and on what."""
    config = experiment.config
    return {
        "task": config.task.name,
        "attention": config.attention.name,
        "seed": config.train.seed,
        "num_params": experiment.num_params,
        "objective": config.objective.name,
        **found,
        **floors(experiment, splits),
        "fraction_exact": experiment.fraction_exact(splits["test"].lengths),
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        **{key: sessions[-1][key] for key in ("device", "versions", "commit")},
        "sessions": sessions,
    }


def keep_vocabulary(workdir: Folder, experiment: Experiment) -> None:
    """Copies the task's tokenizer.json there, or removes that of an earlier run."""
    words = experiment.task.vocabulary_file(experiment.config.task.data_dir)
    copy = workdir / TOKENIZER_FILE
    with system_errors(copy):
        if words:
            write_bytes(copy, words.read_bytes())
        elif copy.exists():
            copy.unlink()


def floors(experiment: Experiment, splits: dict[str, Split]) -> dict[str, Any]:
    """The floors of the selected metric, and those of the others by metric."""
    found = experiment.learning.floors(experiment.task, splits)
    others = {x: found[x] for x in experiment.objective.metrics if x in found}
    selected = others.pop(experiment.objective.select, {})
    return {"floors": selected, "other_floors": others}


def check_memory(num_params: int) -> None:
    """Raises ConfigError if the training state alone exceeds the memory."""
    stats = jax.local_devices()[0].memory_stats() or {}
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    room = stats.get("bytes_limit", machine)
    needed = 16 * num_params  # float32: weights, gradient, Adam's two moments
    if needed > room:
        raise ConfigError(
            f"{num_params:,} parameters take {needed / 1e9:,.0f} GB to train, and "
            f"{room / 1e9:,.0f} GB are available: choose a smaller config.model"
        )


def mesh_of(experiment: Experiment, sequence_parallelism: int) -> Mesh:
    """The mesh of all devices of all processes."""
    train = experiment.config.train
    if sequence_parallelism > 1 and train.length_buckets > 1:
        raise ConfigError(
            f"--sequence_parallelism={sequence_parallelism} needs sequences of one length: "
            "config.train.length_buckets must be 1"
        )
    size = train.batch_size // train.grad_accum_steps
    try:
        return make_mesh(
            size, experiment.task.max_length, sequence_parallelism=sequence_parallelism
        )
    except ValueError as error:
        raise ConfigError(
            f"{error}, or other devices (CUDA_VISIBLE_DEVICES)"
        ) from error


def summary(result: dict[str, Any]) -> str:
    """The result and its floors as text."""
    metric = result.get("metric", "accuracy")
    validation, test = (
        shown(metric, result[f"{split}_{metric}"]) for split in ("validation", "test")
    )
    lines = [
        f"{result['task']} with {result['attention']}, seed {result['seed']}: best "
        f"validation {metric} {validation} at step {result['best_step']:,}",
        f"test {metric} {test} ({result['test_examples']:,} examples)",
    ]
    if share := result.get("fraction_exact"):
        lines.append(
            f"  attention is exact in {share:.0%} of the examples, which have no more "
            "tokens than there are landmarks"
        )
    tested = {metric: result["floors"], **result.get("other_floors", {})}
    for name, floors in tested.items():
        if name != metric:
            lines.append(f"test {name} {shown(name, result[f'test_{name}'])}")
        for rule, value in floors.items():
            lines.append(f"  floor: {shown(name, value):>6}  {rule}")
    return "\n".join(lines)
