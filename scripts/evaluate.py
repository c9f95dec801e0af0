"""Evaluates the best weights of a run again.

python scripts/evaluate.py --workdir=DIR --split=test
"""

from absl import flags

from lra_tasks.base import SPLITS
from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.trained_run import TrainedRun
from nystromformer.training.data import Data
from nystromformer.training.evaluate import evaluate
from nystromformer.training.step import make_eval_step, split_weights

_WORKDIR = cli.define_workdir("a run of scripts/train.py", buckets=True)
_SPLIT = flags.DEFINE_enum("split", "test", SPLITS, "which examples")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "where the data lie, if elsewhere")
flags.mark_flag_as_required("workdir")


def main() -> None:
    run = TrainedRun.load(cli.folder(_WORKDIR))
    config = run.experiment.config
    data_dir = _DATA_DIR.value or config.task.data_dir
    split = run.experiment.task.load(_SPLIT.value, data_dir)
    if run.result and split.content_hash() != run.result["data_sha256"][_SPLIT.value]:
        raise ConfigError(
            f"the {_SPLIT.value} split here is not the one that this run was given: "
            "mend source_dir, or name another --data_dir"
        )
    data = Data.put(split)
    graphdef, weights = split_weights(run.model())
    eval_step = make_eval_step(graphdef)
    metrics = evaluate(
        eval_step,
        weights,
        data,
        config.train.batch_size // config.train.micro_batches,
        length_buckets=config.train.length_buckets,
    )
    assert metrics is not None
    state = "finished" if run.result else "unfinished"
    print(
        f"{config.task.name} with {config.attention.name} ({state} run, step "
        f"{run.step:,}): {_SPLIT.value} accuracy {metrics['accuracy']:.2%}, loss "
        f"{metrics['loss']:.4f}, {int(metrics['examples']):,} examples"
    )


if __name__ == "__main__":
    cli.run(main)
