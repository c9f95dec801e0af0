"""The training loop: train, validate, log, save and resume."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from nystromformer.errors import CheckpointError, ConfigError, NotFiniteError
from nystromformer.run_files import BEST_FOLDER
from nystromformer.training import checkpoint
from nystromformer.training.chunk_timer import ChunkTimer
from nystromformer.training.compiled import Programs
from nystromformer.training.data import HostSplit, train_example_ids
from nystromformer.training.devices import all_hosts_max, device_put_global, is_host_0
from nystromformer.training.evaluate import evaluate
from nystromformer.training.interrupt import Interrupted, StopFlag
from nystromformer.training.metrics import Totals
from nystromformer.training.output import MetricsWriter, Progress, say
from nystromformer.training.run_state import RunState
from nystromformer.training.step import State, Weights
from nystromformer.training_config import TrainConfig

# An embedding gives NaN for a token that it does not have, and so does a cross-entropy
# for a class.
ADVICE = (
    "if the model has every token and class of the data, a lower "
    "config.optimizer.learning_rate may help, in a new workdir"
)


class Trainer:
    """One training run in a workdir, new or resumed from its newest checkpoint.

    Args:
      programs: the compiled functions, which also know the objective and the mesh.
      config: the steps, intervals, batches and seed.
      splits: "train", "validation", "test" and any others that begin with "test", as
        `HostSplit.from_split` takes them.
      workdir: an existing folder, or one in a bucket; the same for every process.
      init_weights: a function of the fresh weights, on the host, that returns the
        weights to begin with; None keeps the fresh ones.
      data_sha256: split -> sha256 of its data.
      settings: the settings of the run as JSON has them, for TensorBoard. They are
        saved with the best weights, too, and so tell whose weights these are.

    Raises:
      ConfigError: a split has no examples, train has fewer than a batch, or the config
        says no number of steps.
      CheckpointError: no checkpoint can be read, or the run was trained on data with
        a different data_sha256.
    """

    def __init__(
        self,
        programs: Programs,
        config: TrainConfig,
        splits: dict[str, Any],
        workdir: Any,
        init_weights: Callable[[Weights], Weights] | None = None,
        data_sha256: dict[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ):
        self.programs = programs
        self.objective = programs.objective
        self.mesh = programs.mesh
        self.config = config
        self.workdir = epath.Path(workdir)
        self.splits = {
            name: HostSplit.from_split(split) for name, split in splits.items()
        }
        self._check_splits()
        self.settings = settings
        self.timer = ChunkTimer()
        self.stop = StopFlag()

        seed = np.uint32(config.seed)
        shapes: State = programs.init.eval_shape(seed)
        restored = checkpoint.restore(self.workdir, (shapes, shapes.weights))
        if restored is not None:
            (state, self.best), meta = restored
            self.state = device_put_global(self.mesh, state)
            self.run_state = RunState(**meta)
        else:
            self.state = programs.init(seed)
            self.best = jax.device_get(self.state.weights)
            self.run_state = RunState(data_sha256=data_sha256)
            if init_weights is not None:
                weights = device_put_global(self.mesh, init_weights(self.best))
                self.state = self.state._replace(weights=weights)
        if self.run_state.data_sha256 != data_sha256:
            raise CheckpointError(
                f"the run in {workdir} was trained on other data: correct source_dir "
                "or data_dir"
            )

        self.step = int(self.state.step)
        self.saved_step = self.step
        self.writer = MetricsWriter(
            workdir,
            step=self.step,
            evaluated=self.run_state.evaluated,
            settings=settings,
            score=self.objective.select,
        )

    def fit(self) -> dict[str, Any]:
        """Trains to the end, then measures the test splits with the best weights.

        Returns:
          What training adds to result.json.

        Raises:
          Interrupted: a signal has come. The state is saved.
          NotFiniteError: a loss, a gradient, or every validation was not finite.
            Nothing is saved after the last checkpoint.
        """
        config = self.config
        start_time = time.monotonic() - self.run_state.wall_seconds
        if self.step:
            say(f"resuming from step {self.step}")

        with self.stop, contextlib.closing(self.writer):
            self._compile()
            progress = Progress(self.step, config.num_steps)
            with contextlib.closing(progress):
                while self.step < config.num_steps or self._is_validation_due():
                    # A signal may have ended a validation. The resumed run then
                    # validates before it trains.
                    if not self._is_validation_due():
                        throughput = self._train_chunk()
                        self._log(progress, throughput)
                    if self._is_validation_due():
                        self._validate()

                    self.run_state.wall_seconds = time.monotonic() - start_time
                    signum = self._signum()
                    if signum or self._is_due(config.checkpoint_every):
                        self._save()
                    if signum:
                        raise Interrupted(signum, self.step)

                test_metrics = self._test()
                self.run_state.wall_seconds = time.monotonic() - start_time
                return self._result(test_metrics)

    def _check_splits(self) -> None:
        """Raises ConfigError for what could not be trained or measured."""
        if not self.config.num_steps:
            raise ConfigError("give train.num_steps: epochs need an Experiment")
        for name, split in self.splits.items():
            if not split.num_examples:
                raise ConfigError(f"the split {name} has no examples")
            if (split.labels < 0).all():
                raise ConfigError(f"no token of the split {name} has a label")
        num_examples = self.splits["train"].num_examples
        if num_examples < self.config.batch_size:
            raise ConfigError(
                f"train.batch_size={self.config.batch_size} is over the {num_examples} "
                "training examples: take a smaller one"
            )

    def delete_checkpoints(self) -> None:
        """Deletes what only an unfinished run needs."""
        if is_host_0():
            (self.workdir / checkpoint.FOLDER).rmtree()

    def _is_due(self, interval: int) -> bool:
        """Whether something is due that happens every so many steps, and at the end."""
        is_at_end = self.step == self.config.num_steps
        return is_at_end or self.step % interval == 0

    def _is_validation_due(self) -> bool:
        is_new = self.step > max(self.run_state.evaluated, 0)
        return is_new and self._is_due(self.config.eval_every)

    def _signum(self) -> int:
        """The signal that asks this run to stop, whichever process got it; 0 = none."""
        return all_hosts_max(self.stop.signum or 0)

    def _compile(self) -> None:
        """Compiles the training step, unless no step is left."""
        is_jit_disabled = jax.config.values["jax_disable_jit"]
        if self.step < self.config.num_steps and not is_jit_disabled:
            self.run_state.compiled_bytes = self.programs.compile(
                self.splits["train"], self.config.batch_size
            )

    def _train_chunk(self) -> float:
        """Trains for about a second, and not past the next event.

        Returns the examples per second.
        """
        config = self.config
        train = self.splits["train"]
        num_steps = min(self.timer.size, config.num_steps - self.step)
        intervals = (config.log_every, config.eval_every, config.checkpoint_every)
        for interval in intervals:
            num_steps = min(num_steps, interval - self.step % interval)

        with self.timer.measure(num_steps):
            chunk = train.chunk(self._example_ids(self.step, num_steps), self.mesh)
            self.state, finite = self.programs.train_chunk(self.state, chunk)
            train.prefetch(self._example_ids(self.step + num_steps, num_steps))
            self.step = int(self.state.step)  # waits for the devices

        culprits = jax.device_get(finite).name_culprits()
        if culprits:
            raise NotFiniteError(f"step {self.step}: not finite: {culprits}; {ADVICE}")
        return num_steps * config.batch_size / self.timer.seconds

    def _example_ids(self, first_step: int, num_steps: int) -> np.ndarray:
        """The training examples of steps first_step, …, int32 [num_steps, B]."""
        return train_example_ids(
            seed=self.config.seed,
            first_step=first_step,
            num_steps=num_steps,
            num_examples=self.splits["train"].num_examples,
            batch_size=self.config.batch_size,
        )

    def _log(self, progress: Progress, throughput: float) -> None:
        """Shows the metrics since the last line, and writes a line when it is due."""
        means = self.state.totals.means()
        means.pop("examples")
        progress.update(self.step, means, throughput)
        if self._is_due(self.config.log_every):
            means["examples_per_second"] = throughput
            self.writer.write(self.step, "train", means)
            zero = Totals.zero(self.objective.metrics)
            self.state = self.state._replace(totals=device_put_global(self.mesh, zero))

    def _evaluate(self, weights: Weights, split: str) -> dict[str, float] | None:
        """The metrics of a split; None if the run is asked to stop meanwhile."""
        metrics = evaluate(
            self.programs,
            weights,
            self.splits[split],
            batch_size=self.config.batch_size // self.config.grad_accum_steps,
            length_buckets=self.config.length_buckets,
            should_stop=lambda: self._signum() > 0,
        )
        if metrics and not math.isfinite(metrics["loss"]):
            raise NotFiniteError(
                f"step {self.step}: the {split} loss is not finite; {ADVICE}"
            )
        return metrics

    def _validate(self) -> None:
        """Measures the validation split, and keeps the weights if they are the best."""
        metrics = self._evaluate(self.state.weights, "validation")
        if metrics is None:
            return
        self.writer.write(self.step, "validation", metrics)
        self.run_state.evaluated = self.step
        value = metrics[self.objective.select]
        if self.run_state.is_improved_by(value, self.objective.higher_is_better):
            self.run_state.best_step = self.step
            self.run_state.best_value = value
            self.best = jax.device_get(self.state.weights)
            self._save_best()

        metrics.pop("examples")
        texts = [f"{name} {value:.4f}" for name, value in metrics.items()]
        say(f"step {self.step}: validation {', '.join(texts)}")

    def _save(self) -> None:
        """Saves a checkpoint, unless this step has one."""
        if self.step == self.saved_step:
            return
        checkpoint.save_step(
            self.workdir,
            self.step,
            state=(self.state, self.best),
            meta=dataclasses.asdict(self.run_state),
        )
        self.saved_step = self.step

    def _save_best(self) -> None:
        """Saves the best weights where others load them."""
        folder = self.workdir / BEST_FOLDER
        checkpoint.save_weights(folder, self.best, meta=self.settings)

    def _test(self) -> dict[str, float]:
        """Measures each test split with the best weights.

        Returns the metrics by split and name, as in "test_accuracy".
        """
        if self.run_state.best_step is None:
            raise NotFiniteError(
                f"the validation {self.objective.select} was never finite, though the "
                "loss was: see whether anything in the split counts for it"
            )
        weights = device_put_global(self.mesh, self.best)
        test_metrics = {}
        for split in self.splits:
            if not split.startswith("test"):
                continue
            metrics = self._evaluate(weights, split)
            if metrics is None:
                raise Interrupted(self._signum(), self.step)
            self.writer.write(self.step, split, metrics)
            test_metrics |= {f"{split}_{name}": x for name, x in metrics.items()}
        # A session that was killed may have written newer weights there than its last
        # checkpoint knows. They are replaced by those that were tested.
        self._save_best()
        return test_metrics

    def _result(self, test_metrics: dict[str, float]) -> dict[str, Any]:
        """What training adds to result.json."""
        run_state = self.run_state
        return {
            "steps": self.step,
            "metric": self.objective.select,
            f"validation_{self.objective.select}": run_state.best_value,
            **test_metrics,
            "examples_per_second": self.writer.median("examples_per_second"),
            "wall_seconds": run_state.wall_seconds,
            "best_step": run_state.best_step,
            "compiled_bytes": run_state.compiled_bytes,
            "init_from_sha256": run_state.init_from_sha256,
            "data_sha256": run_state.data_sha256,
            "params_sha256": checkpoint.weights_sha256(self.best),
        }
