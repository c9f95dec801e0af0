"""The runs of several seeds that are trained together, each in its own workdir.

A workdir then holds what it holds after `run_training` of its seed alone.
"""

import contextlib
from collections.abc import Sequence

from etils import epath
from flax.traverse_util import flatten_dict

from nystromformer.config import Config
from nystromformer.errors import ConfigError, NotFiniteError
from nystromformer.experiments import provenance
from nystromformer.experiments.cli import StopFlag
from nystromformer.experiments.config_file import format_config
from nystromformer.experiments.experiment import Experiment
from nystromformer.experiments.run import (
    load_data,
    make_run_mesh,
    run_training,
    summarize,
    write_config,
    write_result,
)
from nystromformer.experiments.workdir import check_workdir, lock_workdir
from nystromformer.run_files import FAILURE_FILE, read_result
from nystromformer.training.checkpoint import saved_steps
from nystromformer.training.loop import Run, compile_step
from nystromformer.training.seeds import find_common_step, open_runs, train_seeds


def check_together(config: Config) -> None:
    """Raises ConfigError for a config whose seeds cannot be trained together.

    A part of a batch has the length of its own examples. Those of several seeds would
    differ, and each would compute all lengths.
    """
    num_lengths = config.train.length_buckets
    if num_lengths > 1:
        raise ConfigError(
            "seeds cannot be trained together with train.length_buckets="
            f"{num_lengths}: set it to 1, or train each seed by itself"
        )


def run_seeds(
    experiments: Sequence[Experiment], workdirs: Sequence[epath.Path]
) -> None:
    """Trains several seeds to the end, together, and writes the result.json of each.

    A seed that is finished or has failed is left out, and one that remains is trained
    by itself. One that meets a NaN gets a failed.txt, and the others go on.

    Args:
      experiments: what to train; their configs differ in the seed alone.
      workdirs: the folder of each, as `run_training` takes it.

    Raises:
      ConfigError: as in `run_training`; several devices; a config that `check_together`
        refuses; or checkpoints of which none are of one step.
      NotFiniteError: some of the runs have met a NaN. All others are finished.
    """
    check_together(experiments[0].config)
    waiting = []
    for experiment, workdir in zip(experiments, workdirs, strict=True):
        check_workdir(workdir, experiment.config)
        if _is_waiting(workdir):
            waiting.append((experiment, workdir))
    if len(waiting) == 1:
        experiment, workdir = waiting[0]
        print(summarize(run_training(experiment, workdir)))
    if len(waiting) < 2:
        return

    with contextlib.ExitStack() as locks:
        for _, workdir in waiting:
            locks.enter_context(lock_workdir(workdir))
            if read_result(workdir) is not None:
                raise ConfigError(
                    f"another process has just finished {workdir}: run the same "
                    "command again for the others"
                )
        _train([x for x, _ in waiting], [workdir for _, workdir in waiting])


def _is_waiting(workdir: epath.Path) -> bool:
    """Whether a run is neither finished nor failed; says so if it is."""
    if read_result(workdir) is not None:
        print(f"{workdir} is finished; delete it to run again")
        return False
    failure = workdir / FAILURE_FILE
    if failure.exists():
        print(f"{workdir} has failed, {failure.read_text()}; delete {failure} to retry")
        return False
    return True


def _train(experiments: Sequence[Experiment], workdirs: Sequence[epath.Path]) -> None:
    """`run_seeds` in folders that are locked and whose runs are not finished."""
    mesh = make_run_mesh(experiments[0])
    if mesh.size > 1:
        raise ConfigError(
            f"seeds are trained together on one device, and here are {mesh.size}: "
            "choose one by CUDA_VISIBLE_DEVICES, or train each seed by itself"
        )
    step = find_common_step(workdirs)
    if step is None:
        raise ConfigError(
            "these runs have no checkpoint of one step, from which they could go on "
            f"together: {_describe_steps(workdirs)}; train each by itself, or delete "
            "all these folders to begin again"
        )

    seeds = [experiment.config.train.seed for experiment in experiments]
    print(format_config(experiments[0].config))
    is_new = not all(saved_steps(workdir) for workdir in workdirs)
    splits, first_weights = load_data(experiments[0], is_new=is_new)
    for experiment in experiments:
        experiment.task = experiments[0].task  # it may have learnt its vocabulary
    num_examples = splits["train"].num_examples
    experiments = [x.with_num_steps(num_examples) for x in experiments]
    configs = [experiment.config for experiment in experiments]

    names = ", ".join(str(seed) for seed in seeds)
    print(f"{experiments[0]}, seeds {names} together on {provenance.device()}")
    print("compiling the training step…", flush=True)
    made_by = {**provenance.collect(), "seeds_together": seeds}
    runs = open_runs(
        experiments[0].make_programs(mesh),
        [config.train for config in configs],
        splits,
        workdirs,
        settings=[flatten_dict(config.to_mapping(), sep=".") for config in configs],
        init_weights=first_weights.make,
        init_from_sha256=first_weights.source_sha256,
        data_sha256={name: split.content_hash for name, split in splits.items()},
        session=made_by,
    )
    compile_step(runs)
    for experiment, workdir in zip(experiments, workdirs, strict=True):
        write_config(experiment, workdir)

    with StopFlag() as stop:
        outcomes = train_seeds(
            runs, should_stop=lambda: stop.signum or 0, on_failure=_write_failure
        )
        failures = []
        for experiment, run, outcome in zip(experiments, runs, outcomes, strict=True):
            if isinstance(outcome, NotFiniteError):
                failures.append(f"seed {run.config.seed}: {outcome}")
                continue
            result = write_result(
                experiment, splits, run, outcome=outcome, mesh=mesh, made_by=made_by
            )
            print(summarize(result))
    if failures:
        raise NotFiniteError("; ".join(failures))


def _describe_steps(workdirs: Sequence[epath.Path]) -> str:
    """Says which checkpoints runs have, as in "0 has 20 and 40, 1 has none"."""
    folders = []
    for workdir in workdirs:
        steps = " and ".join(str(step) for step in reversed(saved_steps(workdir)))
        folders.append(f"{workdir} has {steps or 'none'}")
    return ", ".join(folders)


def _write_failure(run: Run, error: NotFiniteError) -> None:
    """Notes why a run has failed, so that the others can go on without it."""
    (run.workdir / FAILURE_FILE).write_text(str(error))
