"""The training loop: train, validate, log, save and resume."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from nystromformer.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    NotFiniteError,
)
from nystromformer.run_files import BEST_FOLDER
from nystromformer.training import checkpoint
from nystromformer.training.chunk_timer import ChunkTimer
from nystromformer.training.data import HostSplit, train_example_ids
from nystromformer.training.devices import all_hosts_max, device_put_global
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Totals
from nystromformer.training.output import MetricsWriter, Progress, say
from nystromformer.training.step import Finite, Programs, State, Weights
from nystromformer.training_config import TrainConfig

# An embedding gives NaN for a token that it does not have, and so does a cross-entropy
# for a class.
ADVICE = (
    "if the model has every token and class of the data, a lower "
    "config.optimizer.learning_rate may help, in a new workdir"
)


@dataclasses.dataclass
class Record:
    """What a run remembers beside its arrays, as the JSON of a checkpoint.

    Attributes:
      wall_seconds: the time of training, in all sessions together.
      evaluated: the last step at which validation was measured.
      best_step: the step with the best weights, the first of equals.
      best_value: the selected metric of these weights, on validation.
      compiled_bytes: the bytes that the compiled training step holds at once.
      sessions: the step at which each session began, and by which program.
      init_from_sha256: the sha256 of the weights with which the run began, if they are
        those of another run.
      data_sha256: split -> sha256 of its data.
    """

    wall_seconds: float = 0.0
    evaluated: int = -1
    best_step: int | None = None
    best_value: float | None = None
    compiled_bytes: int | None = None
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    init_from_sha256: str | None = None
    data_sha256: dict[str, str] | None = None

    def is_improved_by(self, value: float, higher_is_better: bool) -> bool:
        """Whether this value of the selected metric is better than all before."""
        if not math.isfinite(value):
            return False  # no later value would be better than a NaN
        if self.best_value is None:
            return True
        if higher_is_better:
            return value > self.best_value
        return value < self.best_value


@dataclasses.dataclass
class Run:
    """A run in its workdir, which `open_run` has checked.

    Attributes:
      programs: the compiled functions, which also know the objective and the mesh.
      config: the steps, intervals, batches and seed.
      splits: the data.
      workdir: the folder of the run.
      settings: the settings of the run as JSON has them.
      step: the steps that have been taken.
      saved_step: the step of the last checkpoint; 0 before the first.
      state: weights, optimizer and totals after this step, on the devices.
      best: the weights with the best validation so far, on the host.
      record: what else a checkpoint holds.
    """

    programs: Programs
    config: TrainConfig
    splits: Mapping[str, HostSplit]
    workdir: epath.Path
    settings: Mapping[str, Any] | None
    step: int
    saved_step: int
    state: State
    best: Weights
    record: Record


def open_run(
    programs: Programs,
    config: TrainConfig,
    splits: Mapping[str, Any],
    workdir: epath.PathLike,
    *,
    init_weights: Callable[[Weights], Weights] | None = None,
    init_from_sha256: str | None = None,
    data_sha256: dict[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    session: Mapping[str, Any] | None = None,
    max_step: int | None = None,
) -> Run:
    """Begins a run, or resumes it from the newest checkpoint; writes nothing.

    Args:
      programs: the compiled functions.
      config: the steps, intervals, batches and seed.
      splits: "train", "validation", "test" and any others that begin with "test", as
        `HostSplit.from_split` takes them.
      workdir: an existing folder, or one in a bucket; the same for every process.
      init_weights: a function of the fresh weights, on the host, that returns the
        weights to begin with; None keeps the fresh ones.
      init_from_sha256: the sha256 of the weights from which they come.
      data_sha256: split -> sha256 of its data.
      settings: the settings of the run as JSON has them, for TensorBoard. They are
        saved with the best weights, too, and so tell whose weights these are.
      session: what to remember of this session, such as the versions.
      max_step: the last step from which the run may go on; None = any.

    Raises:
      ConfigError: a split has no examples, or no labels for an objective that reads
        them; train has fewer examples than a batch, or the config says no number of
        steps.
      CheckpointError: no checkpoint can be read, or the run was trained on data with
        a different data_sha256.
    """
    host_splits = {name: HostSplit.from_split(split) for name, split in splits.items()}
    _check_splits(host_splits, config)
    if getattr(programs.objective, "reads_labels", True):
        _check_labels(host_splits)

    mesh = programs.mesh
    seed = np.uint32(config.seed)
    shapes: State = programs.init.eval_shape(seed)
    restored = checkpoint.restore(workdir, (shapes, shapes.weights), max_step)
    if restored is not None:
        (host_state, best), meta = restored
        state = device_put_global(mesh, host_state)
        record = Record(**meta)
    else:
        state = programs.init(seed)
        best = jax.device_get(state.weights)
        record = Record(data_sha256=data_sha256, init_from_sha256=init_from_sha256)
        if init_weights is not None:
            weights = device_put_global(mesh, init_weights(best))
            state = state._replace(weights=weights)
    if record.data_sha256 != data_sha256:
        raise CheckpointError(
            f"the run in {workdir} was trained on other data: correct source_dir "
            "or data_dir"
        )

    step = int(state.step)
    record.sessions.append({"step": step, **(session or {})})
    return Run(
        programs=programs,
        config=config,
        splits=host_splits,
        workdir=epath.Path(workdir),
        settings=settings,
        step=step,
        saved_step=step,
        state=state,
        best=best,
        record=record,
    )


def compile_step(runs: Sequence[Run]) -> None:
    """Compiles the step of a run, or of several that are trained together.

    A step that does not fit in memory fails here, before anything is written.
    """
    first = runs[0]
    is_trained = first.step == first.config.num_steps
    if is_trained or jax.config.values["jax_disable_jit"]:
        return
    num_bytes = first.programs.compile(
        first.splits["train"], first.config.batch_size, len(runs)
    )
    for run in runs:
        run.record.compiled_bytes = num_bytes


def _check_splits(splits: Mapping[str, HostSplit], config: TrainConfig) -> None:
    """Raises ConfigError for what could not be trained or measured."""
    if not config.num_steps:
        raise ConfigError("give train.num_steps: epochs need an Experiment")
    for name, split in splits.items():
        if not split.num_examples:
            raise ConfigError(f"the split {name} has no examples")
    num_examples = splits["train"].num_examples
    if num_examples < config.batch_size:
        raise ConfigError(
            f"train.batch_size={config.batch_size} is over the {num_examples} "
            "training examples: take a smaller one"
        )


def _check_labels(splits: Mapping[str, HostSplit]) -> None:
    """Raises ConfigError for a split of which no token has a label."""
    for name, split in splits.items():
        if (split.labels < 0).all():
            raise ConfigError(
                f"no token of the split {name} has a label: give it some, or another "
                "split"
            )


def train(run: Run, should_stop: Callable[[], int] = lambda: 0) -> dict[str, Any]:
    """Trains to the end, then measures the test splits with the best weights.

    Args:
      run: the run, which is changed.
      should_stop: gives the number of the signal that asks this process to stop, or 0.
        It is called about once a second.

    Returns:
      What training adds to result.json.

    Raises:
      Interrupted: `should_stop` asked for it, in any process. The state is saved.
      NotFiniteError: a loss, a gradient, or every validation was not finite.
        Nothing is saved after the last checkpoint.
    """
    start_time = time.monotonic() - run.record.wall_seconds

    def stop_signal() -> int:
        """The signal that asks the run to stop, whichever process got it; 0 = none."""
        return all_hosts_max(should_stop())

    if run.step:
        say(f"resuming from step {run.step}")
    with contextlib.closing(open_writer(run)) as writer:
        _take_steps(run, writer, start_time, stop_signal)
        test_metrics = measure_tests(run, writer, stop_signal)
    run.record.wall_seconds = time.monotonic() - start_time
    return make_outcome(run, writer, test_metrics)


def open_writer(run: Run) -> MetricsWriter:
    """Opens the metrics of a run, which go on at its step."""
    return MetricsWriter(
        run.workdir,
        step=run.step,
        evaluated=run.record.evaluated,
        settings=run.settings,
        score=run.programs.objective.select,
    )


def make_outcome(
    run: Run, writer: MetricsWriter, test_metrics: Mapping[str, float]
) -> dict[str, Any]:
    """Makes what the training of a run adds to its result.json."""
    select = run.programs.objective.select
    return {
        "steps": run.step,
        "metric": select,
        f"validation_{select}": run.record.best_value,
        **test_metrics,
        "examples_per_second": writer.median("examples_per_second"),
        "wall_seconds": run.record.wall_seconds,
        "best_step": run.record.best_step,
        "compiled_bytes": run.record.compiled_bytes,
        "init_from_sha256": run.record.init_from_sha256,
        "data_sha256": run.record.data_sha256,
        "params_sha256": checkpoint.weights_sha256(run.best),
    }


def _take_steps(
    run: Run,
    writer: MetricsWriter,
    start_time: float,
    stop_signal: Callable[[], int],
) -> None:
    """Trains to the last step, beside a progress bar; validates, logs and saves.

    start_time: when the run would have begun if one session had done it all.
    """
    config = run.config
    timer = ChunkTimer()
    with contextlib.closing(Progress(run.step, config.num_steps)) as progress:
        while run.step < config.num_steps or is_validation_due(run):
            # A signal may have ended a validation. The resumed run then validates
            # before it trains.
            if not is_validation_due(run):
                throughput = _take_chunk(run, timer)
                means = log_chunk(run, writer, throughput)
                progress.update(run.step, means, throughput)
            if is_validation_due(run):
                validate(run, writer, stop_signal)

            run.record.wall_seconds = time.monotonic() - start_time
            signum = stop_signal()
            save_if_due(run, is_stopping=signum > 0)
            if signum:
                raise Interrupted(signum, run.step)


def log_chunk(run: Run, writer: MetricsWriter, throughput: float) -> dict[str, float]:
    """Writes a line of metrics after a chunk, if one is due.

    Returns the metrics since the last line in the file.
    """
    means = run.state.totals.means()
    means.pop("examples")
    if _is_due(run, run.config.log_every):
        writer.write(run.step, "train", {**means, "examples_per_second": throughput})
        zero = Totals.zero(run.programs.objective.metrics)
        totals = device_put_global(run.programs.mesh, zero)
        run.state = run.state._replace(totals=totals)
    return means


def save_if_due(run: Run, is_stopping: bool) -> None:
    """Saves a checkpoint where one is due, or the run is about to stop."""
    is_saved = run.step == run.saved_step
    if not is_saved and (is_stopping or _is_due(run, run.config.checkpoint_every)):
        save(run)


def save(run: Run) -> None:
    """Saves a checkpoint of a run as it is now."""
    checkpoint.save_step(
        run.workdir,
        run.step,
        state=(run.state, run.best),
        meta=dataclasses.asdict(run.record),
    )
    run.saved_step = run.step


def _is_due(run: Run, interval: int) -> bool:
    """Whether something is due that happens every so many steps, and at the end."""
    return run.step == run.config.num_steps or run.step % interval == 0


def is_validation_due(run: Run) -> bool:
    """Whether the validation of this step has yet to be measured."""
    is_new = run.step > max(run.record.evaluated, 0)
    return is_new and _is_due(run, run.config.eval_every)


def _take_chunk(run: Run, timer: ChunkTimer) -> float:
    """Trains for about a second, and not past the next event.

    Returns the examples per second.
    """
    num_steps = next_num_steps(run, timer)
    split = run.splits["train"]
    with timer.measure(num_steps):
        example_ids = next_example_ids(run, run.step, num_steps)
        chunk = split.chunk(example_ids, run.programs.mesh)
        run.state, finite = run.programs.train_chunk(run.state, chunk)
        split.prefetch(next_example_ids(run, run.step + num_steps, num_steps))
        run.step = int(run.state.step)  # waits for the devices
    check_finite(run, finite)
    return num_steps * run.config.batch_size / timer.seconds


def next_num_steps(run: Run, timer: ChunkTimer) -> int:
    """The steps of the next chunk: about a second, and not past the next event."""
    config = run.config
    intervals = (config.log_every, config.eval_every, config.checkpoint_every)
    until_events = [interval - run.step % interval for interval in intervals]
    return min(
        timer.size,
        run.splits["train"].chunk_room(config.batch_size),
        config.num_steps - run.step,
        *until_events,
    )


def next_example_ids(run: Run, first_step: int, num_steps: int) -> np.ndarray:
    """The training examples int32 [num_steps, B] of so many steps."""
    return train_example_ids(
        seed=run.config.seed,
        first_step=first_step,
        num_steps=num_steps,
        num_examples=run.splits["train"].num_examples,
        batch_size=run.config.batch_size,
    )


def check_finite(run: Run, finite: Finite) -> None:
    """Raises NotFiniteError if the last step of a chunk has given a NaN."""
    culprits = jax.device_get(finite).name_culprits()
    if culprits:
        raise NotFiniteError(f"step {run.step}: not finite: {culprits}; {ADVICE}")


def validate(
    run: Run, writer: MetricsWriter, stop_signal: Callable[[], int], title: str = ""
) -> None:
    """Measures the validation split, and keeps the weights if they are the best.

    What it prints begins with the title.
    """
    metrics = _measure(run, run.state.weights, "validation", stop_signal)
    if metrics is None:
        return
    writer.write(run.step, "validation", metrics)
    run.record.evaluated = run.step
    objective = run.programs.objective
    value = metrics[objective.select]
    if run.record.is_improved_by(value, objective.higher_is_better):
        run.record.best_step = run.step
        run.record.best_value = value
        run.best = jax.device_get(run.state.weights)
        _save_best(run)

    metrics.pop("examples")
    texts = [f"{name} {value:.4f}" for name, value in metrics.items()]
    say(f"{title}step {run.step}: validation {', '.join(texts)}")


def measure_tests(
    run: Run, writer: MetricsWriter, stop_signal: Callable[[], int]
) -> dict[str, float]:
    """Measures each test split of a run with its best weights.

    Returns the metrics by split and name, as in "test_accuracy".
    """
    if run.record.best_step is None:
        raise NotFiniteError(
            f"the validation {run.programs.objective.select} was never finite, though "
            "the loss was: see whether anything in the split counts for it"
        )
    weights = device_put_global(run.programs.mesh, run.best)
    test_metrics = {}
    for split in run.splits:
        if not split.startswith("test"):
            continue
        metrics = _measure(run, weights, split, stop_signal)
        if metrics is None:
            raise Interrupted(stop_signal(), run.step)
        writer.write(run.step, split, metrics)
        test_metrics |= {f"{split}_{name}": x for name, x in metrics.items()}
    # A session that was killed may have written newer weights there than its last
    # checkpoint knows. They are replaced by those that were tested.
    _save_best(run)
    return test_metrics


def _save_best(run: Run) -> None:
    """Saves the best weights where others load them."""
    checkpoint.save_weights(run.workdir / BEST_FOLDER, run.best, meta=run.settings)


def _measure(
    run: Run, weights: Weights, split: str, stop_signal: Callable[[], int]
) -> dict[str, float] | None:
    """The metrics of a split; None if the run is asked to stop meanwhile."""
    metrics = evaluate(
        run.programs,
        weights,
        run.splits[split],
        batch_size=run.config.batch_size // run.config.grad_accum_steps,
        length_buckets=run.config.length_buckets,
        max_examples=run.config.max_eval_examples,
        should_stop=lambda: stop_signal() > 0,
    )
    if metrics and not math.isfinite(metrics["loss"]):
        raise NotFiniteError(
            f"step {run.step}: the {split} loss is not finite; {ADVICE}"
        )
    return metrics
