"""Evaluates the best weights of a run again.

python scripts/evaluate.py --workdir=DIR --split=test
"""

from pathlib import Path

import jax
from absl import flags
from flax import nnx

from lra_tasks.base import SPLITS
from nystromformer.config import ConfigError
from nystromformer.training.batches import Data
from nystromformer.training.checkpoint import CheckpointError, Checkpoints, digest
from nystromformer.training.evaluate import evaluate
from nystromformer.training.step import make_eval_step, make_init
from scripts import command
from scripts.experiment import (
    RESULT_FILE,
    Experiment,
    read_config,
    read_result,
)

_WORKDIR = flags.DEFINE_string("workdir", None, "a run of scripts/train.py")
_SPLIT = flags.DEFINE_enum("split", "test", SPLITS, "which examples")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "where the data lie, if elsewhere")
flags.mark_flag_as_required("workdir")


def main() -> None:
    workdir = Path(str(_WORKDIR.value)).expanduser()
    config = read_config(workdir)
    experiment = Experiment.from_config(config)
    if not (workdir / "checkpoints").is_dir():
        raise ConfigError(f"{workdir} has no checkpoints yet")
    make_model, optimizer = experiment.make_model, experiment.make_optimizer()
    abstract_state = jax.eval_shape(make_init(make_model, optimizer, seed=0))
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    restored = checkpoints.restore(abstract_state)
    checkpoints.close()
    if restored is None or restored[0].best_step < 0:
        raise ConfigError(f"{workdir} has no validated weights yet")
    best, best_step = restored[0].best, int(restored[0].best_step)
    result = read_result(workdir)
    if result and result["params_sha256"] != digest(best):
        raise CheckpointError(
            f"the weights in {workdir} are not those of its {RESULT_FILE}"
        )

    data_dir = _DATA_DIR.value or config.task.data_dir
    data = Data.put(experiment.task.load(_SPLIT.value, data_dir))
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))
    metrics = evaluate(
        make_eval_step(graphdef), jax.device_put(best), data, config.train.batch_size
    )
    assert metrics is not None
    state = "finished" if result else "unfinished"
    print(
        f"{config.task.name} with {config.attention.name} ({state} run, step "
        f"{best_step:,}): {_SPLIT.value} accuracy {metrics['accuracy']:.2%}, loss "
        f"{metrics['loss']:.4f}, {int(metrics['examples']):,} examples"
    )


if __name__ == "__main__":
    command.run(main)
