"""The training loop: train, validate, log, save and resume."""

import dataclasses
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.config import TrainConfig
from nystromformer.training.arrays import digest
from nystromformer.training.checkpoint import Checkpoints
from nystromformer.training.data import Mapped, place, train_indices
from nystromformer.training.devices import (
    DATA,
    largest,
    of_first,
    one_device,
    peak_bytes,
    program_bytes,
    put,
)
from nystromformer.training.evaluate import evaluate
from nystromformer.training.files import Folder, MetricsWriter
from nystromformer.training.interrupt import Interrupted, StopFlag
from nystromformer.training.objective import Objective, Totals
from nystromformer.training.progress import Pace, Progress
from nystromformer.training.record import Record
from nystromformer.training.step import (
    State,
    Weights,
    graphdef_of,
    make_eval_chunk,
    make_init,
    make_train_chunk,
)

MAX_CHUNK, MAX_MAPPED_CHUNK = 512, 64  # steps; of data that are mapped from disk
SAVING_SHARE = 0.05  # of the time, at most, goes into checkpoints


class NotFiniteError(ValueError):
    """A loss or gradient became NaN or infinite; the message names step and culprit."""


class Trainer:
    """One training run in a workdir, new or going on from its newest checkpoint.

    Args:
      make_model: from rngs to a model that the objective can call.
      objective: what is learnt.
      optimizer: any optax transformation.
      schedule: how long and how often.
      splits: "train", "validation" and "test" -> arrays, as `place` takes.
      workdir: an existing folder, or one in a bucket; the same for every process.
      mesh: the devices; None = one.
      start: weights to begin with instead of fresh ones, given the fresh ones.
      data_sha256: of each split, to be the same in every session.

    Raises:
      CheckpointError: there are checkpoints, but none can be read, or of other data.
    """

    def __init__(
        self,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        objective: Objective,
        optimizer: optax.GradientTransformation,
        schedule: TrainConfig,
        splits: dict[str, Any],
        workdir: Folder,
        mesh: Mesh | None = None,
        start: Callable[[Weights], Weights] | None = None,
        data_sha256: dict[str, str] | None = None,
    ):
        self.schedule, self.objective = schedule, objective
        self.mesh = mesh = mesh or one_device()
        self.data = {name: place(split, mesh) for name, split in splits.items()}
        graphdef = graphdef_of(make_model)
        init = make_init(make_model, optimizer, objective, mesh)
        self.train_chunk: Any = make_train_chunk(
            graphdef,
            optimizer,
            objective,
            mesh,
            grad_accum_steps=schedule.grad_accum_steps,
            length_buckets=schedule.length_buckets,
        )
        self.eval_chunk = make_eval_chunk(graphdef, objective, mesh)
        self.record = Record()
        self.best: tuple[int, Weights] | None = None
        self.checkpoints = Checkpoints(workdir)
        self.step, metrics_bytes = 0, 0
        self.saved: tuple[int, int] | None = None  # steps trained to and validated at
        seed = np.uint32(schedule.seed)
        shapes: State = init.eval_shape(seed)  # with where they lie
        if restored := self.checkpoints.restore(shapes):
            state, meta, self.best = restored
            self.step, self.record = int(state.step), Record(**meta["record"])
            self.saved = self.step, self.record.evaluated
            metrics_bytes = meta["metrics_bytes"]
        self.record.trained_on(data_sha256 or {})
        self.saved_at, self.saving_seconds = time.monotonic(), 0.0
        self.writer = MetricsWriter(workdir, metrics_bytes, self.step)
        mapped = isinstance(self.data["train"], Mapped)
        self.max_chunk = MAX_MAPPED_CHUNK if mapped else MAX_CHUNK
        self.pace = Pace(self.max_chunk)
        if self.step < schedule.num_steps:  # XLA compiles while the state is made
            lowered = self.train_chunk.lower(shapes, *self._batches(1))
            self.compiled = ThreadPoolExecutor(1).submit(lowered.compile)
        self.state = put(mesh, state) if restored else init(seed)
        if start and not restored:
            fresh = jax.device_get(self.state.weights)
            self.state = self.state._replace(weights=put(mesh, start(fresh)))

    def fit(self) -> dict[str, Any]:
        """Trains to the end and tests the best weights.

        Returns:
          For result.json: the metric that chose them, its best on validation, and all
          metrics on the test split.

        Raises:
          Interrupted: on SIGTERM, SIGINT or SIGALRM, after saving.
          NotFiniteError: a NaN or Inf; the last checkpoint stays as it was.
          CheckpointError: the state cannot be saved.
        """
        self.progress = Progress(self.step, self.schedule.num_steps)
        self.started = time.monotonic()
        if self.step:
            self.progress.say(f"resuming from step {self.step}")
        try:
            with StopFlag() as self.stop:
                while self.step < self.schedule.num_steps or self._validation_due():
                    self._advance()
                return self._test()
        finally:
            self.progress.close()
            self.writer.close()

    def finish(self) -> None:
        """Deletes the checkpoints, which only an unfinished run needs."""
        assert self.best
        self.checkpoints.finish(self.best[0])

    def _advance(self) -> None:
        """Trains one chunk of steps, then validates and saves if due."""
        if not self._validation_due():
            self._train_chunk()
        if self._validation_due():
            self._validate()
        last = self.step == self.schedule.num_steps and not self._validation_due()
        if signum := self._signum():
            self._save()
            raise Interrupted(signum, self.step)
        if last or (
            self.step % self.schedule.checkpoint_every == 0 and self._worth_saving()
        ):
            self._save()

    def _signum(self) -> int:
        """The signal that asks this run to stop, whichever process got it; 0 = none."""
        return largest(self.stop.signum or 0)

    def _validation_due(self) -> bool:
        at_end = self.step == self.schedule.num_steps
        due = at_end or (self.step and self.step % self.schedule.eval_every == 0)
        return bool(due) and self.record.evaluated < self.step

    def _train_chunk(self) -> None:
        """Trains for about a second, not past the next event."""
        schedule = self.schedule
        every = (schedule.log_every, schedule.eval_every, schedule.checkpoint_every)
        room = min(n - self.step % n for n in every)
        num_steps = min(self.pace.size, room, schedule.num_steps - self.step)
        batches = self._batches(num_steps)
        first = self.progress.first_step is None
        with self.pace.measure(num_steps):
            if first:  # compiled ahead, which tells what memory it takes
                self.train_chunk = self.compiled.result()
                held = program_bytes(self.train_chunk)
                self.record.compiled_bytes = sum(held) if held else None
            self.state, finite = self.train_chunk(self.state, *batches)
            self.step = int(self.state.step)
        if culprits := jax.device_get(finite).culprits():
            saved = f"step {self.saved[0]}" if self.saved else "none"
            raise NotFiniteError(
                f"step {self.step}: not finite: {', '.join(culprits)}; the last "
                f"checkpoint is {saved}; a lower learning rate may help"
            )
        throughput = num_steps * schedule.batch_size / self.pace.seconds
        if not first:
            self.record.train_seconds += self.pace.seconds
            self.record.train_examples += num_steps * schedule.batch_size
        means = self.state.totals.means()
        means.pop("examples")
        self.progress.update(self.step, means, throughput)
        if self.step % schedule.log_every == 0 or self.step == schedule.num_steps:
            means["examples_per_second"] = throughput
            self.writer.write(self.step, "train", means)
            zero = put(self.mesh, Totals.zero(self.objective))
            self.state = self.state._replace(totals=zero)

    def _batches(self, num_steps: int) -> tuple[Any, jax.Array, jax.Array]:
        """The data of the next steps, their examples and their number."""
        data, schedule = self.data["train"], self.schedule
        indices = np.zeros((self.max_chunk, schedule.batch_size), np.int32)
        indices[:num_steps] = train_indices(
            schedule.seed, self.step, num_steps, len(data.labels), schedule.batch_size
        )
        part, indices = data.part(indices, num_steps)
        return (
            part,
            put(self.mesh, indices, None, DATA),
            put(self.mesh, np.int32(num_steps)),
        )

    def _evaluate(self, weights: Weights, split: str) -> dict[str, float] | None:
        metrics = evaluate(
            self.eval_chunk,
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
        value = metrics[self.objective.select]
        if self.record.validated(self.step, value, self.objective.higher_is_better):
            self.best = self.step, jax.device_get(self.state.weights)
        shown = (f"{k} {v:.4f}" for k, v in metrics.items() if k != "examples")
        self.progress.say(f"step {self.step}: validation {', '.join(shown)}")

    def _worth_saving(self) -> bool:
        """Whether another save like the last keeps saving a small share of the time."""
        since = time.monotonic() - self.saved_at
        return bool(of_first(int(SAVING_SHARE * since >= self.saving_seconds)))

    def _save(self) -> None:
        if self.saved == (self.step, self.record.evaluated):
            return
        started = time.monotonic()
        self._note_time()
        meta = {
            "metrics_bytes": self.writer.num_bytes(),
            "record": dataclasses.asdict(self.record),
        }
        self.checkpoints.save(self.step, self.state, meta, self.best)
        self.saved = self.step, self.record.evaluated
        self.saved_at = time.monotonic()
        self.saving_seconds = self.saved_at - started

    def _note_time(self) -> None:
        """Adds the time since the last call, and the memory's peak."""
        now = time.monotonic()
        self.record.wall_seconds += now - self.started
        self.started = now
        peaks = filter(None, (peak_bytes(), self.record.peak_bytes))
        self.record.peak_bytes = max(peaks, default=None)  # over all sessions

    def _test(self) -> dict[str, Any]:
        """Measures the test split, once, with the best weights."""
        assert self.best
        metrics = self._evaluate(put(self.mesh, self.best[1]), "test")
        if metrics is None:
            raise Interrupted(self._signum(), self.step)
        self.writer.write(self.step, "test", metrics)
        self.writer.num_bytes()  # raises where that line cannot be written
        self.checkpoints.save_best(self.best)  # no result is without its weights
        self._note_time()
        return {
            "steps": self.step,
            **self.record.findings(self.objective.select, metrics),
            "params_sha256": digest(self.best[1]),
        }
