"""One run in its workdir: load, train to the end, write result.json."""

import contextlib
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lra_tasks.task import Split, Task
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments import provenance
from nystromformer.experiments.experiment import Experiment, check_num_steps
from nystromformer.experiments.metric_names import format_metric
from nystromformer.experiments.trained_run import TrainedRun, load_run
from nystromformer.experiments.transfer import carry_over, with_weights
from nystromformer.experiments.workdir import (
    CONFIG_FILE,
    RESULT_FILE,
    TOKENIZER_FILE,
    check_workdir,
    lock_workdir,
    read_result,
    write_json,
)
from nystromformer.training.checkpoint import saved_steps, weights_sha256
from nystromformer.training.compiled import Programs
from nystromformer.training.data import HostSplit
from nystromformer.training.devices import (
    check_same_on_all_hosts,
    is_host_0,
    make_mesh,
)
from nystromformer.training.loop import Trainer
from nystromformer.training.output import METRICS_FILE


def run_training(
    experiment: Experiment, workdir: epath.Path, sequence_parallelism: int = 1
) -> dict[str, Any]:
    """Trains to the end, from the state of the workdir, and writes result.json.

    No other process may train there meanwhile. Nothing but the lock is written before
    config, data and devices have been checked: ConfigError if they do not fit, or the
    workdir is another run's. A finished run is only read.
    """
    check_num_steps(experiment.config.train)
    check_workdir(workdir, experiment.config)
    is_finished = read_result(workdir) is not None
    with contextlib.nullcontext() if is_finished else lock_workdir(workdir):
        # It is read again: whoever had the lock may have finished the run.
        if result := read_result(workdir):
            print(f"{workdir} is finished; delete it to run again")
            return result
        return _train(experiment, workdir, sequence_parallelism)


def _train(
    experiment: Experiment, workdir: epath.Path, sequence_parallelism: int
) -> dict[str, Any]:
    """`run_training` in a folder that is locked and whose run is not finished."""
    source = None if saved_steps(workdir) else load_source(experiment.config)
    mesh = mesh_of(experiment, sequence_parallelism)
    experiment, splits, programs = load_and_compile(experiment, mesh)
    config, task = experiment.config, experiment.task
    data_sha256 = {name: x.content_hash for name, x in splits.items()}
    check_same_on_all_hosts(config=f"{workdir} {config}", data=str(data_sha256))
    print(f"{experiment} on {provenance.device()}")
    taken = carry_over(source, experiment) if source else {}
    trainer = Trainer(
        programs,
        config.train,
        splits,
        workdir,
        start=(lambda fresh: with_weights(fresh, taken)) if taken else None,
        data_sha256=data_sha256,
    )
    if is_host_0():
        write_json(workdir / CONFIG_FILE, config.to_mapping())
        if tokenizer := task.vocabulary_file(config.task.data_dir):
            (workdir / TOKENIZER_FILE).write_bytes(tokenizer.read_bytes())
    multihost_utils.sync_global_devices("opened the workdir")
    if source:
        trainer.run_state.init_from_sha256 = weights_sha256(source.weights)
    made_by, sessions = provenance.source(), trainer.run_state.sessions
    sessions.append({"step": trainer.step, **made_by})
    found = trainer.fit()
    floors = experiment.spec.floors(task, splits)
    floors = {x: floors[x] for x in experiment.objective.metrics if x in floors}
    result = {
        "task": config.task.name,
        "attention": config.attention.name,
        "seed": config.train.seed,
        "num_params": experiment.num_params,
        "objective": config.objective.name,
        **found,
        "floors": floors.pop(experiment.objective.select, {}),
        "other_floors": floors,
        "fraction_exact": experiment.fraction_exact(splits["test"].lengths),
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        **made_by,
        "sessions": sessions,
    }
    if is_host_0():
        write_json(workdir / RESULT_FILE, result)
    trainer.delete_checkpoints()
    return result


def load_source(config: Config) -> TrainedRun | None:
    """The run that `train.init_from` names, if any; ConfigError if it still trains."""
    if not config.train.init_from:
        return None
    folder = epath.Path(config.train.init_from).expanduser()
    source = load_run(folder)
    if source.result is None and (folder / METRICS_FILE).exists():  # nor imported
        raise ConfigError(f"init_from: {folder} is not finished: train it to its end")
    return source


def mesh_of(experiment: Experiment, sequence_parallelism: int) -> Mesh:
    train, length = experiment.config.train, experiment.task.max_length
    if sequence_parallelism > 1 and train.length_buckets > 1:
        raise ConfigError("--sequence_parallelism needs config.train.length_buckets=1")
    size = train.batch_size // train.grad_accum_steps
    return make_mesh(size, length, sequence_parallelism=sequence_parallelism)


def load_and_compile(
    experiment: Experiment, mesh: Mesh
) -> tuple[Experiment, dict[str, Split], Programs]:
    """Prepares and loads a run's data; one process compiles its programs meanwhile.

    With `train.num_epochs` the learning rate depends on the data: they come first.
    """
    train = experiment.config.train
    print("loading the data, compiling the training step…", flush=True)
    # tensorflow-datasets replaces `builtins.__import__` while it is imported. Were that
    # left to the thread below, an import by JAX in this one could fail meanwhile.
    importlib.import_module("lra_tasks.storage")
    loading, programs = in_background(experiment.load), None
    # Sources that are missing are an error before anything is compiled.
    compiled = train.num_steps and not jax.config.values["jax_disable_jit"]
    compiled &= jax.process_count() == 1  # several wait for one another in this
    if compiled and wait([loading], timeout=0.5).not_done:
        programs = experiment.make_programs(mesh)
        example = HostSplit.from_split(example_of(experiment.task))
        programs.compile(example, train.batch_size)
    splits = loading.result()
    experiment = experiment.with_num_steps(splits["train"].num_examples)
    return experiment, splits, programs or experiment.make_programs(mesh)


def in_background(function: Callable[[], Any]) -> Future:
    """The future result of a function in a thread, for which no process waits to end.

    So an error elsewhere is shown at once, not when the function returns.
    """
    future: Future = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def example_of(task: Task) -> Split:
    """A split of one example, with the shapes and dtypes of the task's splits."""
    rows = np.zeros((task.num_inputs, task.max_length), task.dtype)
    lengths = np.full(len(rows), 0 if task.padded else task.max_length, np.int32)
    pairs = np.array([[0, 1]], np.int32) if task.num_inputs == 2 else None
    of_tokens = (task.max_length,) if task.num_labels else ()
    return Split(rows, lengths, np.zeros((1, *of_tokens), np.int32), pairs)


def summary(result: dict[str, Any]) -> str:
    metric = result["metric"]
    best = format_metric(metric, result[f"validation_{metric}"])
    lines = [
        f"{result['task']} with {result['attention']}, seed {result['seed']}: best "
        f"validation {metric} {best} at step {result['best_step']:,}"
    ]
    for name, rules in {metric: result["floors"], **result["other_floors"]}.items():
        value = format_metric(name, result[f"test_{name}"])
        lines.append(f"test {name} {value} ({result['test_examples']:,} examples)")
        for rule, floor in rules.items():
            lines.append(f"  floor: {format_metric(name, floor):>6}  {rule}")
    return "\n".join(lines)
