"""A run of scripts/train.py with the best weights that it has found."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.lab.run import RESULT_FILE, Experiment, read_config, read_result
from nystromformer.training.bucket import Folder
from nystromformer.training.checkpoint import CheckpointError, Checkpoints, digest
from nystromformer.training.step import State, graphdef_of, make_init


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """experiment: what its config says; step: of the best weights; result: or None."""

    experiment: Experiment
    state: State
    step: int
    result: dict[str, Any] | None

    @classmethod
    def load(cls, workdir: Folder) -> "TrainedRun":
        """Reads a workdir and changes nothing there.

        Raises:
          ConfigError: it is no run, or has no validated weights yet.
          CheckpointError: its weights are damaged, or not those of its result.
        """
        experiment = Experiment.from_config(read_config(workdir))
        if not (workdir / "checkpoints").is_dir():
            raise ConfigError(f"{workdir} has no checkpoints yet")
        init = make_init(experiment.make_model, experiment.make_optimizer(), seed=0)
        checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
        restored = checkpoints.restore(jax.eval_shape(init))
        checkpoints.close()
        if restored is None or restored[0].best_step < 0:
            raise ConfigError(f"{workdir} has no validated weights yet")
        state, result = restored[0], read_result(workdir)
        if result and result["params_sha256"] != digest(state.best):
            raise CheckpointError(
                f"the weights in {workdir} are not those of its {RESULT_FILE}"
            )
        return cls(experiment, state, int(state.best_step), result)

    def model(self) -> Any:
        """The model with the best weights."""
        graphdef = graphdef_of(self.experiment.make_model)
        return nnx.merge(graphdef, *jax.device_put(self.state.best))
