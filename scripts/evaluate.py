"""Evaluates the best weights of a run on one of its splits.

python scripts/evaluate.py --workdir=DIR --split=test
"""

import runpy

from absl import flags

from lra_tasks.base import SPLITS
from nystromformer.experiments import cli
from nystromformer.experiments.objectives import shown
from nystromformer.experiments.trained_run import load_run

_WORKDIR = cli.define_folder(
    "workdir", "folder of a run, or gs://BUCKET/RUN", required=True, buckets=True
)
_SPLIT = flags.DEFINE_enum("split", "test", SPLITS, "examples to evaluate on")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the data, if it has moved")
_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "config file of a run with its own attention or task",
)


def main() -> None:
    if _CONFIG.value:
        runpy.run_path(_CONFIG.value.partition(":")[0])
    run = load_run(str(_WORKDIR.value))
    metrics = run.evaluate(_SPLIT.value, _DATA_DIR.value)
    state = "finished" if run.result else "unfinished"
    examples = int(metrics.pop("examples"))
    found = (f"{name} {shown(name, value)}" for name, value in metrics.items())
    print(
        f"{run.config.task.name} with {run.config.attention.name} ({state} run, step "
        f"{run.step:,}): {_SPLIT.value} {', '.join(found)}, {examples:,} examples"
    )


if __name__ == "__main__":
    cli.run(main)
