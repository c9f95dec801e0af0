"""Evaluates the best weights of a run on one of its splits.

    python scripts/evaluate.py --workdir=DIR --split=test

The whole split is measured, also where `train.max_eval_examples` let training measure
a part of it, as the preset smoke does; the line then says so.
"""

import start

start.prepare()

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.trained_run import load_run
from nystromformer.metrics import format_metric
from nystromformer.run_files import has_imported_weights

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_SPLIT = flags.DEFINE_string(
    "split", "test", "train, validation, test, test_mismatched (MNLI)"
)
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of sources, if moved")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the data, if it has moved")


def main() -> None:
    """Prints the metrics of the split in one line."""
    run = load_run(str(_WORKDIR.value), _SOURCE_DIR.value)
    metrics = run.evaluate(_SPLIT.value, _DATA_DIR.value)
    num_examples = int(metrics.pop("examples"))
    texts = [f"{name} {format_metric(name, value)}" for name, value in metrics.items()]
    progress = "unfinished run"
    if run.result:
        progress = f"finished run, weights of step {run.result['best_step']:,}"
    elif has_imported_weights(run.folder):
        progress = "imported or exported weights"
    in_training = ""
    limit = run.config.train.max_eval_examples
    if limit is not None and limit < num_examples and _SPLIT.value != "train":
        in_training = f"; training measured {limit:,} of them"
    print(
        f"{run.config.task.name} with {run.config.attention} ({progress}): "
        f"{_SPLIT.value} {', '.join(texts)}, {num_examples:,} examples{in_training}"
    )


if __name__ == "__main__":
    cli.run(main)
