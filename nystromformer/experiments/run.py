"""One run in its workdir: lock, check, load, train, test, and write result.json."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from etils import epath
from filelock import FileLock, Timeout
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lra_tasks.subwords import TOKENIZER_FILE
from lra_tasks.task import Split, task_class
from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments import provenance
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.config_file import (
    compared_settings,
    default_settings,
    format_config,
    read_config,
    read_result,
)
from nystromformer.experiments.experiment import Experiment
from nystromformer.run_files import (
    CONFIG_FILE,
    LOCK_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    format_metric,
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
from nystromformer.training.output import write_text
from nystromformer.training.step import Weights

# A sweep, a shell or SLURM may write these before the run begins.
FILES_BEFORE_A_RUN = {LOCK_FILE}
SUFFIXES_BEFORE_A_RUN = {".txt", ".log", ".out", ".err"}
# Orbax takes the whole path for a pattern, and a backslash for a slash.
UNREADABLE_LETTERS = set("*?[\\")
SECONDS_TO_LOCK = 1.0  # `is_locked` of another process has the lock for a moment


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
        (workdir / TOKENIZER_FILE).write_bytes(tokenizer.read_bytes())


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


@contextlib.contextmanager
def lock_workdir(workdir: epath.Path) -> Iterator[None]:
    """Makes the folder of a run, and keeps other processes out while it is entered.

    A new folder is deleted if nothing has been written to it. A bucket has no locks,
    and of several processes of one run the first one has the lock.

    Raises:
      ConfigError: if another process has the lock, or the folder cannot be written.
    """
    is_bucket = "://" in str(workdir)
    if is_bucket or not is_host_0():
        yield
        return

    is_new = not workdir.exists()
    lock = FileLock(workdir / LOCK_FILE)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=SECONDS_TO_LOCK)
    except Timeout as error:
        raise ConfigError(
            f"another process is training in {workdir}; wait for its end, or give "
            "another --workdir"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"the workdir {workdir} cannot be written: {error.strerror}; give another "
            "--workdir"
        ) from error

    try:
        yield
    finally:
        if is_new:
            _delete_if_unused(workdir)
        lock.release()


def _delete_if_unused(workdir: epath.Path) -> None:
    """Deletes a folder that has nothing but the lock in it."""
    if [path.name for path in workdir.iterdir()] == [LOCK_FILE]:
        (workdir / LOCK_FILE).unlink()
        workdir.rmdir()


def is_locked(workdir: Path) -> bool:
    """Returns whether a process trains in a folder; changes nothing there."""
    if not (workdir / LOCK_FILE).exists():
        return False
    try:
        with FileLock(workdir / LOCK_FILE).acquire(timeout=0.2):
            return False
    except Timeout:
        return True


def check_path(workdir: epath.Path) -> None:
    """Raises ConfigError for a path where orbax cannot read back what it saves."""
    if not UNREADABLE_LETTERS.isdisjoint(os.path.abspath(workdir)):
        raise ConfigError(
            f"checkpoints saved in {workdir} could not be read again: "
            "choose a path without *, ?, [ and \\"
        )


def check_new(workdir: epath.Path) -> None:
    """Checks that a run may begin in a folder, which need not exist.

    Raises:
      ConfigError: if it is a file, holds anything but logs, or its path does not work.
    """
    check_path(workdir)
    if not workdir.exists():
        return
    if not workdir.is_dir():
        raise ConfigError(f"the workdir {workdir} is a file: name a folder")
    for path in workdir.iterdir():
        is_log = path.suffix in SUFFIXES_BEFORE_A_RUN
        if path.name not in FILES_BEFORE_A_RUN and not is_log:
            raise ConfigError(
                f"{path} belongs to no run: choose a new or empty folder as workdir"
            )


def check_workdir(workdir: epath.Path, config: Config) -> None:
    """Checks that a run of this config may begin or go on in a folder.

    Nothing is changed there. A setting that the saved config does not have is newer,
    and compared by its default. Folders of data are not compared. Of another run that
    the config names only the last part of the path is compared, since it may have
    moved. If both sources of `init_from` can be read, their weights must be equal.

    Raises:
      ConfigError: if the folder holds no run, or a run of a different config; the
        message names the first key that differs.
    """
    if not (workdir / CONFIG_FILE).exists():
        check_new(workdir)
        return

    check_path(workdir)
    if (workdir / WEIGHTS_FILE).exists():
        raise ConfigError(
            f"{workdir} holds a model that was exported: name another workdir"
        )
    saved_config = read_config(workdir)
    saved_settings = compared_settings(saved_config.to_mapping())
    settings = compared_settings(config.to_mapping())
    if config.train.num_steps == 0:
        # num_epochs say how long it trains, and the saved run knows the steps.
        settings["train.num_steps"] = saved_settings["train.num_steps"]
    defaults = default_settings(saved_config.task.name, saved_config.attention.name)
    for option in task_class(saved_config.task.name).found_options:
        # Where it is left out the task finds it, and the saved run knows what it found.
        key = f"task.{option}"
        if not settings.get(key):
            settings[key] = saved_settings.get(key)
    for key in saved_settings | settings:
        saved_value = saved_settings.get(key, defaults.get(key))
        value = settings.get(key)
        if saved_value != value:
            raise ConfigError(
                f"{workdir} holds a run with another config: {key} is {saved_value!r} "
                f"there, {value!r} here; name another workdir"
            )
    _check_same_source(workdir, saved_config, config)


def _check_same_source(
    workdir: epath.Path, saved_config: Config, config: Config
) -> None:
    """Raises ConfigError if `init_from` is a different run of the same name."""
    saved_weights = _source_sha256(saved_config)
    weights = _source_sha256(config)
    if saved_weights and weights and saved_weights != weights:
        raise ConfigError(
            f"{workdir} holds a run that began with other weights: train.init_from is "
            f"{saved_config.train.init_from} there, {config.train.init_from} here; "
            "name another workdir"
        )


def _source_sha256(config: Config) -> str | None:
    """sha256 of the weights of the run that `init_from` names; None if unknown."""
    if not config.train.init_from:
        return None
    result = read_result(epath.Path(config.train.init_from).expanduser())
    return result["params_sha256"] if result else None


def write_json(path: epath.PathLike, content: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


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
