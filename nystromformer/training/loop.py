"""The loop: train, validate, log, save, and go on from where it was stopped."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from nystromformer.config import TrainConfig
from nystromformer.training.bucket import Folder
from nystromformer.training.checkpoint import Checkpoints, digest
from nystromformer.training.data import Data, train_indices
from nystromformer.training.devices import DATA, copy, one_device, put
from nystromformer.training.evaluate import evaluate
from nystromformer.training.interrupt import Interrupted, StopFlag
from nystromformer.training.memory import peak_bytes, program_bytes
from nystromformer.training.metrics import Totals
from nystromformer.training.processes import is_first, largest, of_first
from nystromformer.training.progress import Progress
from nystromformer.training.step import (
    Weights,
    graphdef_of,
    make_eval_step,
    make_init,
    make_train_chunk,
)
from nystromformer.training.writer import MetricsWriter, SilentWriter

SECONDS_PER_CHUNK = 1.0  # between two looks at the clock, the signals and the metrics
MAX_CHUNK = 512


class NotFiniteError(ValueError):
    """A loss or gradient became NaN or infinite; the message names step and culprit."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a finished run has found. The tested weights are the best on validation.

    compiled_bytes: what the compiled train step holds at once.
    peak_bytes: the most that the device held, where it counts.
    """

    steps: int
    best_step: int
    validation_accuracy: float
    test_accuracy: float
    test_loss: float
    test_examples: int
    params_sha256: str
    wall_seconds: float
    examples_per_second: float | None
    compiled_bytes: int | None
    peak_bytes: int | None


class Run:
    """One training run in a workdir, new or going on from its newest checkpoint.

    Args:
      make_model: from rngs to a model(inputs, mask, dropout_rng) -> logits [B, C].
      optimizer: any optax transformation.
      schedule: how long and how often.
      splits: "train", "validation" and "test" -> arrays, as `Data.put` takes.
      workdir: an existing folder, or one in a bucket; the same for every process.
      mesh: the devices; None = one.

    Raises:
      CheckpointError: there are checkpoints, but none can be read.
    """

    def __init__(
        self,
        make_model: Callable[[nnx.Rngs], nnx.Module],
        optimizer: optax.GradientTransformation,
        schedule: TrainConfig,
        splits: dict[str, Any],
        workdir: Folder,
        mesh: Mesh | None = None,
    ):
        self.schedule = schedule
        self.mesh = mesh = mesh or one_device()
        self.data = {name: Data.put(split, mesh) for name, split in splits.items()}
        graphdef = graphdef_of(make_model)
        init = make_init(make_model, optimizer, schedule.seed, mesh)
        self.train_chunk: Any = make_train_chunk(
            graphdef,
            optimizer,
            schedule.seed,
            mesh,
            micro_batches=schedule.micro_batches,
            length_buckets=schedule.length_buckets,
        )
        self.eval_step = make_eval_step(graphdef, mesh)
        self.clock = {"wall_seconds": 0.0, "train_seconds": 0.0, "train_examples": 0}
        self.memory = dict[str, int | None](compiled_bytes=None, peak_bytes=None)
        self.checkpoints = Checkpoints(workdir / "checkpoints")
        restored = self.checkpoints.restore(jax.eval_shape(init))
        metrics_bytes = 0
        if restored is None:
            self.state = init()
        else:
            state, meta = restored
            self.state = put(mesh, state)
            self.clock = meta["clock"]
            self.memory = meta.get("memory", self.memory)
            metrics_bytes = meta["metrics_bytes"]
        self.step = int(self.state.step)
        self.saved = self.step if restored else None
        self.writer = SilentWriter()
        if is_first():
            self.writer = MetricsWriter(workdir, metrics_bytes, self.step)
        self.chunk = 0  # steps in the next chunk; the first takes one, to compile

    def fit(self) -> Outcome:
        """Trains to the end and tests the best weights.

        Raises:
          Interrupted: on SIGTERM, SIGINT or SIGALRM, after saving.
          NotFiniteError: a NaN or Inf; the last checkpoint stays as it was.
          CheckpointError: the state cannot be saved.
        """
        self.progress = Progress(self.step, self.schedule.num_steps)
        self.started = time.monotonic()
        if self.step:
            self.progress.say(f"going on from step {self.step}")
        try:
            with StopFlag() as self.stop:
                while self.step < self.schedule.num_steps or self._validation_due():
                    self._advance()
                return self._test()
        finally:
            self.progress.close()
            self.writer.close()
            self.checkpoints.close()

    def _advance(self) -> None:
        """One chunk of steps, and all that is due after it."""
        if not self._validation_due():
            self._train_chunk()
        if self._validation_due():
            self._validate()
        last = self.step == self.schedule.num_steps and not self._validation_due()
        if signum := self._signum():
            self._save()
            raise Interrupted(signum, self.step)
        if last or self.step % self.schedule.checkpoint_every == 0:
            self._save()

    def _signum(self) -> int:
        """The signal that asks this run to stop, whichever process got it; 0 = none."""
        return largest(self.stop.signum or 0)

    def _validation_due(self) -> bool:
        at_end = self.step == self.schedule.num_steps
        due = at_end or (self.step and self.step % self.schedule.eval_every == 0)
        return bool(due) and int(self.state.evaluated) < self.step

    def _train_chunk(self) -> None:
        """Trains for about a second, not past the next event."""
        schedule = self.schedule
        every = (schedule.log_every, schedule.eval_every, schedule.checkpoint_every)
        room = min(n - self.step % n for n in every)
        room = min(room, schedule.num_steps - self.step)
        num_steps = max(1, min(self.chunk, room, MAX_CHUNK))
        started = time.monotonic()
        indices = np.zeros((MAX_CHUNK, schedule.batch_size), np.int32)
        indices[:num_steps] = train_indices(
            schedule.seed,
            self.step,
            num_steps,
            len(self.data["train"].labels),
            schedule.batch_size,
        )
        batches = (
            self.data["train"],
            put(self.mesh, indices, None, DATA),
            put(self.mesh, np.int32(num_steps)),
        )
        if not self.chunk:  # compiled ahead, which tells what memory it takes
            self.train_chunk = self.train_chunk.lower(self.state, *batches).compile()
            held = program_bytes(self.train_chunk)
            self.memory["compiled_bytes"] = sum(held) if held else None
        self.state, finite = self.train_chunk(self.state, *batches)
        self.step = int(self.state.step)
        if culprits := jax.device_get(finite).culprits():
            raise NotFiniteError(
                f"step {self.step}: not finite: {', '.join(culprits)}; the last "
                f"checkpoint is step {self.saved}; a lower learning rate may help"
            )
        seconds = time.monotonic() - started
        throughput = num_steps * schedule.batch_size / seconds
        if self.chunk:  # the first chunk is mostly compiling
            self.clock["train_seconds"] += seconds
            self.clock["train_examples"] += num_steps * schedule.batch_size
            self.chunk = round(SECONDS_PER_CHUNK / seconds * num_steps)
        self.chunk = of_first(max(self.chunk, 1))
        means = self.state.totals.means()
        means.pop("examples")
        self.progress.update(self.step, means, throughput)
        if self.step % schedule.log_every == 0 or self.step == schedule.num_steps:
            means["examples_per_second"] = throughput
            self.writer.write(self.step, "train", means)
            self._set(totals=Totals.zero())

    def _evaluate(self, weights: Weights, split: str) -> dict[str, float] | None:
        metrics = evaluate(
            self.eval_step,
            weights,
            self.data[split],
            self.schedule.batch_size // self.schedule.micro_batches,
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
        self._set(evaluated=np.int32(self.step))
        if metrics["accuracy"] > float(self.state.best_accuracy):
            self.state = self.state._replace(best=copy(self.mesh, self.state.weights))
            self._set(
                best_step=np.int32(self.step),
                best_accuracy=np.float32(metrics["accuracy"]),
            )
        self.progress.say(
            f"step {self.step}: validation accuracy {metrics['accuracy']:.2%}, loss "
            f"{metrics['loss']:.4f}"
        )

    def _set(self, **fields: Any) -> None:
        """Replaces fields of the state by these numbers, on every device."""
        self.state = self.state._replace(**put(self.mesh, fields))

    def _save(self) -> None:
        wall_seconds = self.clock["wall_seconds"] + time.monotonic() - self.started
        peaks = filter(None, (peak_bytes(), self.memory["peak_bytes"]))
        self.memory["peak_bytes"] = max(peaks, default=None)  # over all sessions
        meta = {
            "metrics_bytes": self.writer.num_bytes(),
            "clock": {**self.clock, "wall_seconds": wall_seconds},
            "memory": self.memory,
        }
        self.checkpoints.save(self.step, self.state, meta)
        self.saved = self.step

    def _keep_best(self) -> None:
        """Leaves one checkpoint, of the best weights alone: the rest is zeros.

        What training goes on from is of no more use and three quarters of the bytes;
        zeros are stored as next to none.
        """
        weights, optimizer = self.state.weights, self.state.optimizer
        zeros = jax.tree.map(np.zeros_like, jax.device_get((weights, optimizer)))
        self.state = self.state._replace(weights=zeros[0], optimizer=zeros[1])
        self._save()
        self.checkpoints.keep_only(self.step)

    def _test(self) -> Outcome:
        """Measures the test split, once, with the best weights."""
        metrics = self._evaluate(self.state.best, "test")
        if metrics is None:
            raise Interrupted(self._signum(), self.step)
        self._keep_best()
        self.writer.write(self.step, "test", metrics)
        self.writer.num_bytes()  # raises where that line cannot be written
        clock = self.clock
        return Outcome(
            **self.memory,
            steps=self.step,
            best_step=int(self.state.best_step),
            validation_accuracy=round(float(self.state.best_accuracy), 7),  # float32
            test_accuracy=metrics["accuracy"],
            test_loss=metrics["loss"],
            test_examples=int(metrics["examples"]),
            params_sha256=digest(self.state.best),
            wall_seconds=clock["wall_seconds"] + time.monotonic() - self.started,
            examples_per_second=(
                clock["train_examples"] / clock["train_seconds"]
                if clock["train_seconds"]
                else None
            ),
        )
