"""Evaluates the best weights of a run on one of its splits.

python scripts/evaluate.py --workdir=DIR --split=test
"""

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.metric_names import format_metric
from nystromformer.experiments.trained_run import load_run

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_SPLIT = flags.DEFINE_string("split", "test", "examples to evaluate on")
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of sources, if moved")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the data, if it has moved")


def main() -> None:
    run = load_run(str(_WORKDIR.value), _SOURCE_DIR.value)
    metrics = run.evaluate(_SPLIT.value, _DATA_DIR.value)
    examples = int(metrics.pop("examples"))
    found = ", ".join(f"{k} {format_metric(k, x)}" for k, x in metrics.items())
    step = f"finished run, step {run.result['best_step']:,}" if run.result else ""
    print(
        f"{run.config.task.name} with {run.config.attention.name} "
        f"({step or 'unfinished run'}): {_SPLIT.value} {found}, {examples:,} examples"
    )


if __name__ == "__main__":
    cli.run(main)
