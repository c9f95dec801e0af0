"""One run in its workdir: lock, check, load, train, test, and write result.json."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from etils import epath
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lra_tasks.subwords import TOKENIZER_FILE
from lra_tasks.task import Split
from nystromformer.errors import ConfigError
from nystromformer.experiments import provenance
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.config_file import format_config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.workdir import check_workdir, lock_workdir
from nystromformer.metrics import format_metric, split_of_metric
from nystromformer.run_files import (
    CONFIG_FILE,
    RESULT_FILE,
    read_result,
    write_bytes,
    write_json,
)
from nystromformer.training.checkpoint import delete_steps, saved_steps, weights_sha256
from nystromformer.training.devices import (
    DATA,
    SEQ,
    check_same_on_all_hosts,
    is_host_0,
    make_mesh,
)
from nystromformer.training.loop import Run, compile_step, open_run, train
from nystromformer.training.step import Weights


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
    mesh = make_run_mesh(experiment, sequence_parallelism)
    splits, first_weights = load_data(experiment, is_new=not saved_steps(workdir))
    experiment = experiment.with_num_steps(splits["train"].num_examples)
    config = experiment.config
    data_sha256 = {name: split.content_hash for name, split in splits.items()}
    check_same_on_all_hosts(config=f"{workdir} {config}", data=str(data_sha256))

    print(f"{experiment} on {_describe_devices(mesh)}")
    print("compiling the training step…", flush=True)
    made_by = provenance.collect()
    run = open_run(
        experiment.make_programs(mesh),
        config.train,
        splits,
        workdir,
        init_weights=first_weights.make,
        init_from_sha256=first_weights.source_sha256,
        data_sha256=data_sha256,
        settings=flatten_dict(config.to_mapping(), sep="."),
        session=made_by,
    )
    compile_step([run])
    if is_host_0():
        write_config(experiment, workdir)
    multihost_utils.sync_global_devices("opened the workdir")

    with StopFlag() as stop:
        outcome = train(run, should_stop=lambda: stop.signum or 0)
        # A signal that comes after the test stops nothing: the result is written, too.
        return write_result(
            experiment, splits, run, outcome=outcome, mesh=mesh, made_by=made_by
        )


class FirstWeights(NamedTuple):
    """The weights that a run begins with.

    make: makes them of fresh ones; None keeps these.
    source_sha256: of the weights of the run that `train.init_from` names, or None.
    """

    make: Callable[[Weights], Weights] | None = None
    source_sha256: str | None = None


def load_data(
    experiment: Experiment, is_new: bool
) -> tuple[dict[str, Split], FirstWeights]:
    """Loads the data and, for a new run, what `train.init_from` names.

    Weights that do not fit are refused before the data are prepared, which may take
    long. With "bpe" it is the data that teach the task its vocabulary, so that the two
    vocabularies can be compared only afterwards.
    """
    source = None
    if experiment.config.train.init_from and is_new:
        from nystromformer.experiments.transfer import Source  # for such a run alone

        source = Source(experiment.config.train.init_from)
    learns_vocabulary = experiment.task.tokenizer == "bpe"
    make = None
    if source and not learns_vocabulary:
        make = source.init_weights(experiment)

    print("loading the data…", flush=True)
    splits = experiment.load()
    if source is None:
        return splits, FirstWeights()
    if learns_vocabulary:
        make = source.init_weights(experiment)
    return splits, FirstWeights(make, weights_sha256(source.run.weights))


def make_run_mesh(experiment: Experiment, sequence_parallelism: int = 1) -> Mesh:
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


def _describe_devices(mesh: Mesh) -> str:
    """Says what computes and, for several devices, how they share a batch."""
    if mesh.size == 1:
        return provenance.device()
    num_processes = jax.process_count()
    processes = "1 process" if num_processes == 1 else f"{num_processes} processes"
    return (
        f"{provenance.device()}: {mesh.size} devices in {processes}, each batch in "
        f"{mesh.shape[DATA]} parts, each sequence in {mesh.shape[SEQ]}"
    )


def write_config(experiment: Experiment, workdir: epath.Path) -> None:
    """Writes what reading the run takes: its config and, if it has one, tokenizer."""
    config = experiment.config
    write_json(workdir / CONFIG_FILE, config.to_mapping())
    tokenizer = experiment.task.vocabulary_file(config.task.data_dir)
    if tokenizer:
        write_bytes(workdir / TOKENIZER_FILE, tokenizer.read_bytes())


def write_result(
    experiment: Experiment,
    splits: Mapping[str, Split],
    run: Run,
    *,
    outcome: Mapping[str, Any],
    mesh: Mesh,
    made_by: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes result.json, and deletes the checkpoints that nobody needs any more.

    Args:
      experiment: what was trained.
      splits: its data.
      run: the finished run.
      outcome: what training has returned.
      mesh: the devices.
      made_by: what else says how the run was made, such as the versions.

    Returns:
      The content of result.json.
    """
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
        write_json(run.workdir / RESULT_FILE, result)
    delete_steps(run.workdir)
    return result


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
        num_examples = result[f"{split_of_metric(name, result)}_examples"]
        lines.append(f"test {name} {value} ({num_examples:,} examples)")
        for rule, floor in rules.items():
            lines.append(f"  floor: {format_metric(name, floor):>6}  {rule}")
    return "\n".join(lines)
