"""Trains several seeds of one config together, by one program on one device.

Each seed is a run as in `loop`, with its own workdir, order of examples, dropout,
metrics, checkpoints and best weights. What they share are the chunks of steps: one
program takes the steps of all runs side by side, by `jax.vmap`. So all runs are at the
same step. A run that meets a NaN stops, and the others go on, in a program for fewer
runs that is then compiled.

Random keys are of JAX's own kind, Threefry: under vmap others draw different numbers.
"""

import contextlib
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from etils import epath

from nystromformer.errors import CheckpointError, Interrupted, NotFiniteError
from nystromformer.training.checkpoint import saved_steps
from nystromformer.training.chunk_timer import ChunkTimer
from nystromformer.training.data import HostSplit
from nystromformer.training.loop import (
    Run,
    check_finite,
    is_validation_due,
    log_chunk,
    make_outcome,
    measure_tests,
    next_example_ids,
    next_num_steps,
    open_run,
    open_writer,
    save,
    save_if_due,
    validate,
)
from nystromformer.training.output import Progress, say
from nystromformer.training.step import Programs
from nystromformer.training_config import TrainConfig


def find_common_step(workdirs: Sequence[epath.PathLike]) -> int | None:
    """Finds the last step from which the runs in these folders can all go on.

    A run without a checkpoint begins at step 0, and runs that begin together save this
    step. One that has begun alone does not, so that a new one cannot make it begin
    again.

    Returns:
      The step; None if there is no such step.
    """
    possible_steps = [set(saved_steps(workdir)) or {0} for workdir in workdirs]
    return max(set.intersection(*possible_steps), default=None)


def open_runs(
    programs: Programs,
    configs: Sequence[TrainConfig],
    splits: Mapping[str, Any],
    workdirs: Sequence[epath.PathLike],
    settings: Sequence[Mapping[str, Any] | None],
    **options: Any,
) -> list[Run]:
    """Begins or resumes the runs of several seeds; writes nothing.

    Args:
      programs: the compiled functions of all.
      configs: the config of each, which differ in the seed alone.
      splits: the data of all, as `open_run` takes them.
      workdirs: the folder of each.
      settings: the settings of each run as JSON has them.
      options: further arguments of `open_run`, the same for all.

    Raises:
      ConfigError, CheckpointError: as in `open_run`.
      CheckpointError: the runs cannot go on from one step.
    """
    common_step = find_common_step(workdirs)
    runs = []
    for config, workdir, run_settings in zip(configs, workdirs, settings, strict=True):
        run = open_run(
            programs,
            config,
            splits,
            workdir,
            settings=run_settings,
            max_step=common_step,
            **options,
        )
        train_split = _with_own_prefetch(run.splits["train"])
        run.splits = {**run.splits, "train": train_split}
        runs.append(run)
    steps = {str(run.workdir): run.step for run in runs}
    if len(set(steps.values())) > 1:
        raise CheckpointError(
            "a checkpoint is damaged, and the runs cannot go on from one step: train "
            f"each of them by itself once ({steps})"
        )
    for run in runs:
        newest_step = max(saved_steps(run.workdir), default=0)
        if newest_step > run.step:
            say(
                f"{run.workdir} goes back from step {newest_step} to {run.step}, the "
                "last that all of these seeds have saved"
            )
    return runs


def _with_own_prefetch(split: HostSplit) -> HostSplit:
    """The same examples; rows on a disk are prefetched for one run alone."""
    if not hasattr(split.inputs, "prefetch"):
        return split
    return dataclasses.replace(split, inputs=copy.copy(split.inputs))


@dataclasses.dataclass
class Seed:
    """A run that is trained together with others.

    Attributes:
      run: the run.
      on_failure: called with the error that stops this run alone.
      error: this error; None as long as the run goes on.
      test_metrics: what it has reached on the test splits, at the end.
    """

    run: Run
    on_failure: Callable[[Run, NotFiniteError], None]
    error: NotFiniteError | None = None
    test_metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.title = f"seed {self.run.config.seed}: "
        self.writer = open_writer(self.run)
        self.start_time = time.monotonic() - self.run.record.wall_seconds

    @contextlib.contextmanager
    def stopping_at_nan(self) -> Iterator[None]:
        """Ends the run, and not the others, where a NaN is met inside."""
        try:
            yield
        except NotFiniteError as error:
            self.error = error
            say(f"{self.title}stopped, the others go on: {error}")
            self.on_failure(self.run, error)

    def count_seconds(self) -> None:
        """Notes the time until now, which is that of all seeds."""
        self.run.record.wall_seconds = time.monotonic() - self.start_time


def train_seeds(
    runs: Sequence[Run],
    should_stop: Callable[[], int] = lambda: 0,
    on_failure: Callable[[Run, NotFiniteError], None] = lambda run, error: None,
) -> list[dict[str, Any] | NotFiniteError]:
    """Trains several runs to the end, and measures the test splits of each.

    Args:
      runs: the runs, as `open_runs` returns them; they are changed.
      should_stop: as in `train`.
      on_failure: called with a run and the error that has stopped it.

    Returns:
      For each run what training adds to its result.json, or the error.

    Raises:
      Interrupted: `should_stop` asked for it. The states are saved.
    """
    if runs[0].step:
        say(f"resuming from step {runs[0].step}")
    say(f"{len(runs)} seeds together: examples/s are those of all, metrics their means")
    seeds = [Seed(run, on_failure) for run in runs]
    with contextlib.ExitStack() as writers:
        for seed in seeds:
            writers.enter_context(contextlib.closing(seed.writer))
        # A kill may come when only some seeds have saved their next checkpoint. Then
        # all begin again, from this one.
        for seed in seeds:
            if not saved_steps(seed.run.workdir):
                save(seed.run)
        _take_steps(seeds, should_stop)
        for seed in _unstopped(seeds):
            with seed.stopping_at_nan():
                seed.test_metrics = measure_tests(seed.run, seed.writer, should_stop)

    outcomes: list[dict[str, Any] | NotFiniteError] = []
    for seed in seeds:
        seed.count_seconds()
        outcome = seed.error
        if outcome is None:
            outcome = make_outcome(seed.run, seed.writer, seed.test_metrics)
        outcomes.append(outcome)
    return outcomes


def _unstopped(seeds: Sequence[Seed]) -> list[Seed]:
    return [seed for seed in seeds if seed.error is None]


def _take_steps(seeds: Sequence[Seed], should_stop: Callable[[], int]) -> None:
    """Trains to the last step; validates, logs and saves each seed, as `train` does."""
    num_steps = seeds[0].run.config.num_steps
    step = seeds[0].run.step
    timer = ChunkTimer()
    with contextlib.closing(Progress(step, num_steps)) as progress:
        while step < num_steps or any(is_validation_due(seed.run) for seed in seeds):
            # A signal may have ended some validations. The resumed runs then validate
            # before they train.
            if not any(is_validation_due(seed.run) for seed in seeds):
                _take_chunks(seeds, timer, progress)
                seeds = _unstopped(seeds)
            for seed in seeds:
                with seed.stopping_at_nan():
                    if is_validation_due(seed.run):
                        validate(seed.run, seed.writer, should_stop, seed.title)
            seeds = _unstopped(seeds)
            if not seeds:
                return

            step = seeds[0].run.step
            signum = should_stop()
            for seed in seeds:
                seed.count_seconds()
                save_if_due(seed.run, is_stopping=signum > 0)
            if signum:
                raise Interrupted(signum, step)


def _take_chunks(seeds: Sequence[Seed], timer: ChunkTimer, progress: Progress) -> None:
    """Trains all seeds for about a second, and not past the next event."""
    runs = [seed.run for seed in seeds]
    programs = runs[0].programs
    num_steps = next_num_steps(runs[0], timer)
    with timer.measure(num_steps):
        chunks = []
        for run in runs:
            example_ids = next_example_ids(run, run.step, num_steps)
            chunks.append(run.splits["train"].chunk(example_ids, programs.mesh))
        results = programs.train_chunks([run.state for run in runs], chunks)
        for run, (state, _) in zip(runs, results, strict=True):
            example_ids = next_example_ids(run, run.step + num_steps, num_steps)
            run.splits["train"].prefetch(example_ids)
            run.state = state
        for run in runs:
            run.step = int(run.state.step)  # waits for the device

    throughput = num_steps * runs[0].config.batch_size / timer.seconds  # of one seed
    means = []
    for seed, (_, finite) in zip(seeds, results, strict=True):
        with seed.stopping_at_nan():
            check_finite(seed.run, finite)
            means.append(log_chunk(seed.run, seed.writer, throughput))
    if means:
        values = {name: statistics.mean(x[name] for x in means) for name in means[0]}
        step = max(run.step for run in runs)
        progress.update(step, values, throughput * len(means))
