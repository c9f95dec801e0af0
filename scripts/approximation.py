"""Measures how well attention is approximated inside a trained model.

python scripts/approximation.py --workdir=RUN --out=DIR
python scripts/approximation.py --inputs=smooth --length=512 --out=DIR

writes DIR/README.md with figures, and their numbers as CSV. Without --workdir the
queries, keys and values are synthetic.
"""

from pathlib import Path
from typing import Any

from absl import flags

from lra_tasks.task import SPLITS
from nystromformer.experiments import cli
from nystromformer.experiments.study.approximation import (
    from_run,
    synthetic,
    write_study,
)

ITERATIONS, BASELINES = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20], ["linformer", "performer"]
flags.DEFINE_string("workdir", None, "folder of a run")
flags.DEFINE_string("out", None, "folder to write", required=True)
flags.DEFINE_integer("examples", 8, "number of examples", 1)
flags.DEFINE_integer("example", None, "example in the pictures; default longest", 0)
flags.DEFINE_multi_integer("landmarks", None, "numbers of landmarks", 1)
flags.DEFINE_multi_integer("iterations", ITERATIONS, "numbers of iterations", 0)
flags.DEFINE_multi_enum("baseline", BASELINES, BASELINES, "attentions beside")
flags.DEFINE_enum("split", "validation", SPLITS, "with --workdir: examples to use")
flags.DEFINE_string("data_dir", None, "with --workdir: folder of its data")
flags.DEFINE_enum("inputs", "smooth", ["smooth", "random"], "without --workdir: kind")
flags.DEFINE_integer("length", 512, "without --workdir: tokens", 2)


def main() -> None:
    """Measures what the flags ask for."""
    f: Any = flags.FLAGS
    size = f.examples, f.example
    if f.workdir:
        subject = from_run(f.workdir, f.split, f.data_dir, *size)
    else:
        subject = synthetic(f.inputs, f.length, *size)
    sizes = {"landmarks": f.landmarks, "iterations": f.iterations}
    write_study(subject, Path(f.out).expanduser(), baselines=f.baseline, **sizes)


if __name__ == "__main__":
    cli.run(main)
