"""Evaluates the best weights of a run again.

python scripts/evaluate.py --workdir=DIR --split=test
"""

import runpy

import jax
from absl import flags

from lra_tasks.base import SPLITS
from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.objectives import shown
from nystromformer.lab.trained_run import load_run
from nystromformer.training.data import Data
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Totals
from nystromformer.training.step import graphdef_of, make_eval_chunk

_WORKDIR = cli.define_workdir("a run of scripts/train.py", buckets=True)
_SPLIT = flags.DEFINE_enum("split", "test", SPLITS, "which examples")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "where the data lie, if elsewhere")
_CONFIG = flags.DEFINE_string(
    "config", None, "the run's config file, where it brings its own attention or task"
)
flags.mark_flag_as_required("workdir")


def main() -> None:
    if _CONFIG.value:
        runpy.run_path(_CONFIG.value.partition(":")[0])
    run = load_run(cli.folder(_WORKDIR))
    config = run.config
    data_dir = _DATA_DIR.value or config.task.data_dir
    split = run.task.load(_SPLIT.value, data_dir)
    noted = (run.result or {}).get("data_sha256", {})  # earlier versions have none
    if noted and split.content_hash() != noted[_SPLIT.value]:
        raise ConfigError(
            f"the {_SPLIT.value} split here is not the one that this run was given: "
            "mend source_dir, or name another --data_dir"
        )
    objective = run.experiment.objective
    metrics = evaluate(
        make_eval_chunk(graphdef_of(run.experiment.make_model), objective),
        Totals.zero(objective),
        jax.device_put(run.weights),
        Data.put(split),
        config.train.batch_size // config.train.micro_batches,
        length_buckets=config.train.length_buckets,
    )
    assert metrics is not None
    state = "finished" if run.result else "unfinished"
    examples = int(metrics.pop("examples"))
    found = (f"{name} {shown(name, value)}" for name, value in metrics.items())
    print(
        f"{config.task.name} with {config.attention.name} ({state} run, step "
        f"{run.step:,}): {_SPLIT.value} {', '.join(found)}, {examples:,} examples"
    )


if __name__ == "__main__":
    cli.run(main)
