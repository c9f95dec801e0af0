"""A run of scripts/train.py with the best weights that it has found."""

import dataclasses
from typing import Any

import jax
from flax import nnx

from nystromformer.config import ConfigError
from nystromformer.lab.run import Experiment
from nystromformer.lab.workdir import RESULT_FILE, read_config, read_result
from nystromformer.training.arrays import CheckpointError, digest
from nystromformer.training.checkpoint import read_best
from nystromformer.training.files import Folder
from nystromformer.training.step import Weights, graphdef_of


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """experiment: what its config says; step: of the best weights; result: or None."""

    experiment: Experiment
    weights: Weights
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
        found = read_best(workdir, experiment.weight_shapes)
        if found is None:
            raise ConfigError(f"{workdir} has no validated weights yet")
        step, weights = found
        result = read_result(workdir)
        if result and result["params_sha256"] != digest(weights):
            raise CheckpointError(
                f"the weights in {workdir} are not those of its {RESULT_FILE}"
            )
        return cls(experiment, weights, step, result)

    def model(self) -> Any:
        """The model with the best weights."""
        graphdef = graphdef_of(self.experiment.make_model)
        return nnx.merge(graphdef, *jax.device_put(self.weights))
