"""One run in its workdir: load, train to the end, write result.json."""

import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from typing import Any

import jax
import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lra_tasks.subwords import TOKENIZER_FILE
from lra_tasks.task import Split, Task
from nystromformer.errors import ConfigError
from nystromformer.experiments import provenance
from nystromformer.experiments.config_file import format_config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.interrupt import StopFlag
from nystromformer.experiments.metric_names import format_metric
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.experiments.transfer import carry_over, load_source, replace_weights
from nystromformer.experiments.workdir import (
    check_workdir,
    lock_workdir,
    read_result,
    write_json,
)
from nystromformer.run_files import CONFIG_FILE, RESULT_FILE
from nystromformer.training.checkpoint import (
    delete_steps,
    saved_steps,
    weights_sha256,
)
from nystromformer.training.data import HostSplit
from nystromformer.training.devices import (
    check_same_on_all_hosts,
    is_host_0,
    make_mesh,
)
from nystromformer.training.loop import open_run, train
from nystromformer.training.step import Programs, Weights

# Data that have been prepared are loaded, and sources that are missing are noticed,
# within this time. If loading takes longer, the training step is compiled meanwhile.
SECONDS_BEFORE_COMPILING = 0.5


def run_training(
    experiment: Experiment, workdir: epath.Path, sequence_parallelism: int = 1
) -> dict[str, Any]:
    """Trains to the end, from the state of the workdir, and writes result.json.

    Nothing but the lock is written before config, data and devices have been checked.
    A finished run is only read.

    Args:
      experiment: what to train, as `build_experiment` returns it.
      workdir: the folder of the run, where no other process may train meanwhile.
      sequence_parallelism: devices that share one sequence.

    Returns:
      The content of result.json.

    Raises:
      ConfigError: if config, data and devices do not fit, or the workdir belongs to a
        different run.
    """
    check_workdir(workdir, experiment.config)
    is_finished = read_result(workdir) is not None
    with contextlib.nullcontext() if is_finished else lock_workdir(workdir):
        # It is read again: whoever had the lock may have finished the run.
        result = read_result(workdir)
        if result is not None:
            print(f"{workdir} is finished; delete it to run again")
            return result
        return _train(experiment, workdir, sequence_parallelism)


def _train(
    experiment: Experiment, workdir: epath.Path, sequence_parallelism: int
) -> dict[str, Any]:
    """`run_training` in a folder that is locked and whose run is not finished."""
    print(format_config(experiment.config))
    is_resumed = bool(saved_steps(workdir))
    source = None if is_resumed else load_source(experiment.config)
    mesh = make_run_mesh(experiment, sequence_parallelism)
    # Weights that do not fit are refused before the data are prepared, which may take
    # long. With "bpe", `load` learns the vocabulary, so that it can be compared only
    # afterwards.
    learns_vocabulary = experiment.task.tokenizer == "bpe"
    init_weights = None
    if not learns_vocabulary:
        init_weights = _make_init_weights(source, experiment)
    experiment, splits, programs = load_and_compile(experiment, mesh)
    if learns_vocabulary:
        init_weights = _make_init_weights(source, experiment)
    data_sha256 = {name: split.content_hash for name, split in splits.items()}
    check_same_on_all_hosts(
        config=f"{workdir} {experiment.config}", data=str(data_sha256)
    )
    print(f"{experiment} on {provenance.device()}")

    config = experiment.config
    made_by = provenance.collect()
    run = open_run(
        programs,
        config.train,
        splits,
        workdir,
        init_weights=init_weights,
        init_from_sha256=weights_sha256(source.weights) if source else None,
        data_sha256=data_sha256,
        settings=flatten_dict(config.to_mapping(), sep="."),
        session=made_by,
    )
    if is_host_0():
        _write_config(experiment, workdir)
    multihost_utils.sync_global_devices("opened the workdir")

    with StopFlag() as stop:
        outcome = train(run, should_stop=lambda: stop.signum or 0)
    result = {
        **_identity(experiment),
        **outcome,
        **_floors(experiment, splits),
        "fraction_exact": experiment.fraction_exact(splits["test"]),
        "processes": jax.process_count(),
        "mesh": dict(mesh.shape),
        **made_by,
        "sessions": run.record.sessions,
    }
    if is_host_0():
        write_json(workdir / RESULT_FILE, result)
    delete_steps(workdir)
    return result


def _make_init_weights(
    source: TrainedRun | None, experiment: Experiment
) -> Callable[[Weights], Weights] | None:
    """Returns the function that puts the source's weights in place of fresh ones.

    None if nothing is carried over.
    """
    if source is None:
        return None
    carried = carry_over(source, experiment)
    if not carried:
        return None
    return lambda fresh: replace_weights(fresh, carried)


def _write_config(experiment: Experiment, workdir: epath.Path) -> None:
    """Writes what reading the run takes: its config and, if it has one, tokenizer."""
    config = experiment.config
    write_json(workdir / CONFIG_FILE, config.to_mapping())
    tokenizer = experiment.task.vocabulary_file(config.task.data_dir)
    if tokenizer:
        (workdir / TOKENIZER_FILE).write_bytes(tokenizer.read_bytes())


def _identity(experiment: Experiment) -> dict[str, Any]:
    """The part of a result that says which run it is."""
    config = experiment.config
    return {
        "task": config.task.name,
        "attention": config.attention.name,
        "seed": config.train.seed,
        "num_params": experiment.num_params,
        "objective": config.objective.name,
    }


def _floors(experiment: Experiment, splits: Mapping[str, Split]) -> dict[str, Any]:
    """The floors of the metric that chooses the best weights, and of the others.

    Those on a further test split have its name in front: "mismatched_accuracy" is
    measured on "test_mismatched".
    """
    objective = experiment.objective
    floors = {}
    for split in splits:
        if not split.startswith("test"):
            continue
        prefix = f"{split}_".removeprefix("test_")
        split_floors = experiment.spec.floors(
            experiment.task, {**splits, "test": splits[split]}
        )
        for name in objective.metrics:
            if name in split_floors:
                floors[prefix + name] = split_floors[name]
    return {"floors": floors.pop(objective.select, {}), "other_floors": floors}


def make_run_mesh(experiment: Experiment, sequence_parallelism: int) -> Mesh:
    """Makes the mesh of all devices.

    Args:
      experiment: whose batches they share.
      sequence_parallelism: devices that share one sequence.

    Raises:
      ConfigError: if batches or sequences cannot be divided among them.
    """
    train = experiment.config.train
    if sequence_parallelism > 1 and train.length_buckets > 1:
        raise ConfigError("--sequence_parallelism needs config.train.length_buckets=1")
    return make_mesh(
        train.batch_size // train.grad_accum_steps,
        experiment.task.max_length,
        sequence_parallelism=sequence_parallelism,
    )


def load_and_compile(
    experiment: Experiment, mesh: Mesh
) -> tuple[Experiment, dict[str, Split], Programs]:
    """Prepares and loads a run's data, and compiles its programs meanwhile.

    With `train.num_epochs` the learning rate depends on the data, so they come first;
    and several processes would wait for one another while they compile.

    Returns:
      The experiment with `num_steps`, its splits, and its programs, which compile when
      they are first called if they have not been compiled here.
    """
    train = experiment.config.train
    print("loading the data, compiling the training step…", flush=True)
    # tensorflow-datasets replaces `builtins.__import__` while it is imported. Were that
    # left to the thread below, an import by JAX in this one could fail meanwhile.
    importlib.import_module("lra_tasks.storage")
    loading = call_in_background(experiment.load)
    programs = None
    can_compile = (
        train.num_steps > 0
        and jax.process_count() == 1
        and not jax.config.values["jax_disable_jit"]
    )
    if can_compile and wait([loading], timeout=SECONDS_BEFORE_COMPILING).not_done:
        programs = experiment.make_programs(mesh)
        example = HostSplit.from_split(make_example(experiment.task))
        programs.compile(example, train.batch_size)

    splits = loading.result()
    experiment = experiment.with_num_steps(splits["train"].num_examples)
    return experiment, splits, programs or experiment.make_programs(mesh)


def call_in_background(function: Callable[[], Any]) -> Future:
    """Calls a function in a thread, and returns its future result.

    Unlike a ThreadPoolExecutor, no process waits for the thread to end, so that an
    error elsewhere is shown at once and not when the function returns.
    """
    future: Future = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


def make_example(task: Task) -> Split:
    """Returns a split of one example, with the shapes and dtypes of the task's."""
    inputs = np.zeros((task.num_inputs, task.max_length), task.dtype)
    length = 0 if task.padded else task.max_length
    labels_shape = (1, task.max_length) if task.num_labels else (1,)
    return Split(
        inputs=inputs,
        lengths=np.full(task.num_inputs, length, np.int32),
        labels=np.zeros(labels_shape, np.int32),
        pairs=np.array([[0, 1]], np.int32) if task.num_inputs == 2 else None,
    )


def summarize(result: dict[str, Any]) -> str:
    """Returns the lines that tell a person how a run has ended."""
    metric = result["metric"]
    best_value = format_metric(metric, result[f"validation_{metric}"])
    lines = [
        f"{result['task']} with {result['attention']}, seed {result['seed']}: best "
        f"validation {metric} {best_value} at step {result['best_step']:,}"
    ]
    floors = {metric: result["floors"], **result["other_floors"]}
    for name, rules in floors.items():
        value = format_metric(name, result[f"test_{name}"])
        # "mismatched_accuracy" is of the examples of test_mismatched.
        split = name.rpartition("_")[0]
        num_examples = result.get(f"test_{split}_examples", result["test_examples"])
        lines.append(f"test {name} {value} ({num_examples:,} examples)")
        for rule, floor in rules.items():
            lines.append(f"  floor: {format_metric(name, floor):>6}  {rule}")
    return "\n".join(lines)
