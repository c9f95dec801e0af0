"""The training loop: train, validate, log, save and resume."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from etils import epath

from nystromformer.config import TrainConfig
from nystromformer.training.checkpoint import (
    CheckpointError,
    Checkpoints,
    save_weights,
    weights_sha256,
)
from nystromformer.training.data import MAX_CHUNK, HostData, train_indices
from nystromformer.training.devices import (
    all_hosts_max,
    device_put_global,
    peak_bytes,
    program_bytes,
)
from nystromformer.training.evaluate import evaluate
from nystromformer.training.interrupt import Interrupted, StopFlag
from nystromformer.training.metrics import ChunkTimer, MetricsWriter, Progress
from nystromformer.training.objective import Totals
from nystromformer.training.run_state import RunState
from nystromformer.training.step import Programs, State, Weights


class NotFiniteError(ValueError):
    """A loss or gradient became NaN or infinite; the message names step and culprit."""


class Trainer:
    """One training run in a workdir, new or resumed from its newest checkpoint.

    Args:
      splits: "train", "validation" and "test" -> arrays, as `HostData.of` takes.
      workdir: an existing folder, or one in a bucket; the same for every process.
      start: from the fresh weights, on the host, to those to begin with.
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
        self.workdir, self.train_chunk = epath.Path(workdir), programs.train_chunk
        self.data = {name: HostData.of(x, self.mesh) for name, x in splits.items()}
        self.timer = ChunkTimer(MAX_CHUNK)
        seed = np.uint32(schedule.seed)
        shapes: State = programs.init.eval_shape(seed)  # with where they lie
        self.checkpoints = Checkpoints(self.workdir)
        self.step, self.saved, self.best_written = 0, 0, None
        self.run_state = RunState(data_sha256=data_sha256)
        if restored := self.checkpoints.restore((shapes, shapes.weights)):
            (state, self.best), meta = restored
            self.step = self.saved = int(state.step)
            self.run_state = RunState(**meta)
        if self.run_state.data_sha256 != data_sha256:
            raise CheckpointError(
                f"the run in {workdir} was trained on other data: correct source_dir "
                "or data_dir, or name another workdir"
            )
        self.writer = MetricsWriter(workdir, self.step, self.run_state.evaluated)
        if restored:
            self.state = device_put_global(self.mesh, state)
        else:
            self.state = programs.init(seed)
            self.best = jax.device_get(self.state.weights)
            if start:
                weights = device_put_global(self.mesh, start(self.best))
                self.state = self.state._replace(weights=weights)

    def fit(self) -> dict[str, Any]:
        """Trains to the end, tests the best weights, and returns all for result.json.

        Raises Interrupted after saving, and NotFiniteError without.
        """
        self.progress = Progress(self.step, self.schedule.num_steps)
        if self.step:
            self.progress.say(f"resuming from step {self.step}")
        self.started = time.monotonic()
        with StopFlag() as self.stop:  # also while what is being saved is closed
            try:
                while self.step < self.schedule.num_steps or self._validation_due():
                    self._advance()
                return self._test()
            finally:
                self.progress.close()
                self.writer.close()
                self.checkpoints.close()

    def delete_checkpoints(self) -> None:
        """Deletes what only an unfinished run needs."""
        self.checkpoints.close(delete=True)

    def _advance(self) -> None:
        """Trains one chunk of steps, then validates and saves if due."""
        if not self._validation_due():
            self._train_chunk()
        if self._validation_due():
            self._validate()
        signum, schedule = self._signum(), self.schedule
        at_end = self.step == schedule.num_steps
        if signum or at_end or self.step % schedule.checkpoint_every == 0:
            self._save()
        if signum:
            self.checkpoints.wait()
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
        schedule, run_state = self.schedule, self.run_state
        every = (schedule.log_every, schedule.eval_every, schedule.checkpoint_every)
        room = min(n - self.step % n for n in every)
        num_steps = min(self.timer.size, room, schedule.num_steps - self.step)
        batches = self.data["train"].chunk(self._indices(self.step, num_steps))
        first = self.progress.first_step < 0
        with self.timer.measure(num_steps):
            if first and not jax.config.jax_disable_jit:  # type: ignore
                lowered = self.train_chunk.lower(self.state, *batches)
                self.train_chunk = lowered.compile()
                run_state.compiled_bytes = program_bytes(self.train_chunk)
            self.state, finite = self.train_chunk(self.state, *batches)
            self.data["train"].prefetch(self._indices(self.step + num_steps, num_steps))
            self.step = int(self.state.step)
        if culprits := jax.device_get(finite).culprits():
            raise NotFiniteError(
                f"step {self.step}: not finite: {', '.join(culprits)}; a lower "
                f"learning rate may help; last checkpoint: {self.saved or 'none'}"
            )
        examples = num_steps * schedule.batch_size
        throughput = examples / self.timer.seconds
        if not first:
            run_state.train_seconds += self.timer.seconds
            run_state.train_examples += examples
        means = self.state.totals.means()
        means.pop("examples")
        self.progress.update(self.step, means, throughput)
        if self.step % schedule.log_every == 0 or self.step == schedule.num_steps:
            means["examples_per_second"] = throughput
            self.writer.write(self.step, "train", means)
            zero = device_put_global(self.mesh, Totals.zero(self.objective))
            self.state = self.state._replace(totals=zero)

    def _indices(self, first_step: int, num_steps: int) -> np.ndarray:
        """The examples of steps first_step, …, int32 [num_steps, B]."""
        num_examples = len(self.data["train"].labels)
        sizes = num_steps, num_examples, self.schedule.batch_size
        return train_indices(self.schedule.seed, first_step, *sizes)

    def _evaluate(self, weights: Weights, split: str) -> dict[str, float] | None:
        metrics = evaluate(
            self.programs.eval_chunk,
            Totals.zero(self.objective),
            weights,
            self.data[split],
            self.schedule.batch_size // self.schedule.grad_accum_steps,
            self.mesh,
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
        objective, value = self.objective, metrics[self.objective.select]
        if self.run_state.add_validation(self.step, value, objective.higher_is_better):
            self.best = jax.device_get(self.state.weights)
        shown = (f"{k} {v:.4f}" for k, v in metrics.items() if k != "examples")
        self.progress.say(f"step {self.step}: validation {', '.join(shown)}")

    def _save(self) -> None:
        if self.step == self.saved:
            return
        self._note_session()
        self._write_best()
        meta = dataclasses.asdict(self.run_state)
        self.checkpoints.save(self.step, (self.state, self.best), meta)
        self.saved = self.step

    def _write_best(self) -> None:
        if self.run_state.best_step != self.best_written:
            save_weights(self.workdir / "best", self.best)
            self.best_written = self.run_state.best_step

    def _note_session(self) -> None:
        """Adds the time since the last call, and the memory's peak."""
        now = time.monotonic()
        self.run_state.wall_seconds += now - self.started
        self.started = now
        peaks = filter(None, (peak_bytes(), self.run_state.peak_bytes))
        self.run_state.peak_bytes = max(peaks, default=None)

    def _test(self) -> dict[str, Any]:
        """Measures the test split, once, with the best weights."""
        metrics = self._evaluate(device_put_global(self.mesh, self.best), "test")
        if metrics is None:
            raise Interrupted(self._signum(), self.step)
        self.writer.write(self.step, "test", metrics)
        self._write_best()
        self._note_session()
        self.checkpoints.wait()  # here, where a signal does not interrupt it
        return {
            "steps": self.step,
            **self.run_state.summary(self.objective.select, metrics),
            "params_sha256": weights_sha256(self.best),
        }
