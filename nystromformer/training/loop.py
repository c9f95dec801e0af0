"""The training loop: train, validate, log, save and resume."""

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from nystromformer.config import TrainConfig
from nystromformer.errors import CheckpointError, NotFiniteError
from nystromformer.training import checkpoint
from nystromformer.training.data import Data, train_indices
from nystromformer.training.devices import all_hosts_max, device_put_global, is_host_0
from nystromformer.training.evaluate import evaluate
from nystromformer.training.interrupt import Interrupted, StopFlag
from nystromformer.training.metrics import ChunkTimer, MetricsWriter, Progress, say
from nystromformer.training.objective import Totals
from nystromformer.training.step import Programs, State, Weights


@dataclasses.dataclass
class RunState:
    """What a run remembers beside its arrays: the JSON of a checkpoint."""

    wall_seconds: float = 0.0
    evaluated: int = -1  # the last step at which validation was measured
    best_step: int | None = None  # the first of equals
    best_value: float | None = None  # of the selected metric, on validation
    compiled_bytes: int | None = None  # what the compiled train step holds at once
    sessions: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    init_from_sha256: str | None = None  # of another run's weights
    data_sha256: dict[str, str] | None = None  # of each split


class Trainer:
    """One training run in a workdir, new or resumed from its newest checkpoint.

    Args:
      splits: "train", "validation" and "test" -> arrays, as `Data.of` takes.
      workdir: an existing folder, or one in a bucket; the same for every process.
      start: maps the fresh weights, on the host, to those that training begins with.
      data_sha256: of each split; CheckpointError if it is not that of the checkpoint.
    """

    def __init__(
        self,
        programs: Programs,
        schedule: TrainConfig,
        splits: dict[str, Any],
        workdir: Any,
        start: Callable[[Weights], Weights] | None = None,
        data_sha256: dict[str, str] | None = None,
    ):
        self.programs, self.schedule = programs, schedule
        self.objective, self.mesh = programs.objective, programs.mesh
        self.workdir = epath.Path(workdir)
        self.data = {name: Data.of(x) for name, x in splits.items()}
        self.timer, seed = ChunkTimer(), np.uint32(schedule.seed)
        shapes: State = programs.init.eval_shape(seed)
        if found := checkpoint.restore(self.workdir, (shapes, shapes.weights)):
            (state, self.best), meta = found
            self.state = device_put_global(self.mesh, state)
            self.run_state = RunState(**meta)
        else:
            self.state = programs.init(seed)
            self.run_state = RunState(data_sha256=data_sha256)
            self.best = jax.device_get(self.state.weights)
            if start:
                weights = device_put_global(self.mesh, start(self.best))
                self.state = self.state._replace(weights=weights)
        if self.run_state.data_sha256 != data_sha256:
            other = f"the run in {workdir} was trained on other data"
            raise CheckpointError(f"{other}: correct source_dir or data_dir")
        self.step = self.saved = int(self.state.step)
        self.writer = MetricsWriter(workdir, self.step, self.run_state.evaluated)

    def fit(self) -> dict[str, Any]:
        """Trains to the end, tests the best weights, and returns all for result.json.

        Raises Interrupted after saving, and NotFiniteError without.
        """
        self.started = time.monotonic() - self.run_state.wall_seconds
        schedule, num_steps = self.schedule, self.schedule.num_steps
        if self.step:
            say(f"resuming from step {self.step}")
        with StopFlag() as self.stop, contextlib.closing(self.writer):
            if self.step < num_steps and not jax.config.values["jax_disable_jit"]:
                size = self.programs.compile(self.data["train"], schedule.batch_size)
                self.run_state.compiled_bytes = size
            self.progress = Progress(self.step, num_steps)
            with contextlib.closing(self.progress.bar):
                while self.step < num_steps or self._validation_due():
                    self._advance()
                return self._test()

    def delete_checkpoints(self) -> None:
        """Deletes what only an unfinished run needs."""
        if is_host_0():
            (self.workdir / checkpoint.FOLDER).rmtree()

    def _advance(self) -> None:
        if not self._validation_due():
            self._train_chunk()
        if self._validation_due():
            self._validate()
        signum, schedule = self._signum(), self.schedule
        at_end = self.step == schedule.num_steps
        if signum or at_end or self.step % schedule.checkpoint_every == 0:
            self._save()
        if signum:
            raise Interrupted(signum, self.step)

    def _signum(self) -> int:
        """The signal that asks this run to stop, whichever process got it; 0 = none."""
        return all_hosts_max(self.stop.signum or 0)

    def _validation_due(self) -> bool:
        at_end = self.step == self.schedule.num_steps
        due = at_end or (self.step and self.step % self.schedule.eval_every == 0)
        return bool(due) and self.run_state.evaluated < self.step

    def _train_chunk(self) -> None:
        """Trains for about a second, not past the next event."""
        schedule = self.schedule
        every = (schedule.log_every, schedule.eval_every, schedule.checkpoint_every)
        room = min(n - self.step % n for n in every)
        num_steps = min(self.timer.size, room, schedule.num_steps - self.step)
        train, now = self.data["train"], self._indices(self.step, num_steps)
        with self.timer.measure(num_steps):
            chunk = train.chunk(now, self.mesh)
            self.state, finite = self.programs.train_chunk(self.state, *chunk)
            train.prefetch(self._indices(self.step + num_steps, num_steps))
            self.step = int(self.state.step)
        if culprits := jax.device_get(finite).culprits():
            found = f"step {self.step}: not finite: {', '.join(culprits)}"
            saved = f"last checkpoint: {self.saved or 'none'}"
            raise NotFiniteError(f"{found}; a lower learning rate may help; {saved}")
        means = self.state.totals.means()
        means.pop("examples")
        throughput = num_steps * schedule.batch_size / self.timer.seconds
        self.progress.update(self.step, means, throughput)
        if self.step % schedule.log_every == 0 or self.step == schedule.num_steps:
            means["examples_per_second"] = throughput
            self.writer.write(self.step, "train", means)
            zero = device_put_global(self.mesh, Totals.zero(self.objective))
            self.state = self.state._replace(totals=zero)

    def _indices(self, first_step: int, num_steps: int) -> np.ndarray:
        """The examples of steps first_step, …, int32 [num_steps, B]."""
        sizes = num_steps, len(self.data["train"].labels), self.schedule.batch_size
        return train_indices(self.schedule.seed, first_step, *sizes)

    def _evaluate(self, weights: Weights, split: str) -> dict[str, float] | None:
        metrics = evaluate(
            self.programs,
            weights,
            self.data[split],
            self.schedule.batch_size // self.schedule.grad_accum_steps,
            self.schedule.length_buckets,
            should_stop=lambda: self._signum() > 0,
        )
        if metrics and not math.isfinite(metrics["loss"]):
            raise NotFiniteError(f"step {self.step}: the {split} loss is not finite")
        return metrics

    def _validate(self) -> None:
        """Measures the validation split and keeps the weights if they are the best."""
        metrics = self._evaluate(self.state.weights, "validation")
        if metrics is None:
            return
        self.writer.write(self.step, "validation", metrics)
        run_state, value = self.run_state, metrics[self.objective.select]
        run_state.evaluated = self.step
        sign = 1 if self.objective.higher_is_better else -1
        best = run_state.best_value
        is_better = best is None or sign * value > sign * best
        if is_better and math.isfinite(value):  # nothing would ever beat a NaN
            run_state.best_step, run_state.best_value = self.step, value
            self.best = jax.device_get(self.state.weights)
            checkpoint.save_weights(self.workdir / "best", self.best)
        shown = (f"{k} {v:.4f}" for k, v in metrics.items() if k != "examples")
        say(f"step {self.step}: validation {', '.join(shown)}")

    def _save(self) -> None:
        if self.step != self.saved:
            self.run_state.wall_seconds = time.monotonic() - self.started
            meta, arrays = dataclasses.asdict(self.run_state), (self.state, self.best)
            checkpoint.save_step(self.workdir, self.step, arrays, meta)
            self.saved = self.step

    def _test(self) -> dict[str, Any]:
        """Measures the test split, once, with the best weights."""
        if self.run_state.best_step is None:
            raise NotFiniteError(
                f"the validation {self.objective.select} was never finite: "
                "no weights are the best"
            )
        metrics = self._evaluate(device_put_global(self.mesh, self.best), "test")
        if metrics is None:
            raise Interrupted(self._signum(), self.step)
        self.writer.write(self.step, "test", metrics)
        # A killed run may have left newer ones there, which this one has not found.
        checkpoint.save_weights(self.workdir / "best", self.best)
        self.run_state.wall_seconds = time.monotonic() - self.started
        found = dataclasses.asdict(self.run_state)
        del found["evaluated"], found["sessions"]
        rows = (x.get("examples_per_second") for x in self.writer.rows)
        return {
            "steps": self.step,
            "metric": self.objective.select,
            f"validation_{self.objective.select}": found.pop("best_value"),
            **{f"test_{name}": value for name, value in metrics.items()},
            "examples_per_second": statistics.median(filter(None, rows)),
            **found,
            "params_sha256": checkpoint.weights_sha256(self.best),
        }
