"""Measures how well attention is approximated inside a trained model.

python scripts/approximation.py --workdir=RUN --out=DIR

writes DIR/README.md with figures, and their numbers as CSV.
"""

from pathlib import Path
from typing import Any

from absl import flags

from lra_tasks.task import SPLITS
from nystromformer.experiments import cli
from nystromformer.experiments.study.approximation import layers_of_run, write_study

ITERATIONS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20]
flags.DEFINE_string("workdir", None, "folder of a run", required=True)
flags.DEFINE_string("out", None, "folder to write", required=True)
flags.DEFINE_integer("examples", 8, "number of examples", 1)
flags.DEFINE_multi_integer("landmarks", None, "numbers of landmarks", 1)
flags.DEFINE_multi_integer("iterations", ITERATIONS, "numbers of iterations", 1)
flags.DEFINE_enum("split", "validation", SPLITS, "examples to use")
flags.DEFINE_string("data_dir", None, "folder of the run's data")


def main() -> None:
    """Measures what the flags ask for."""
    f: Any = flags.FLAGS
    layers, about = layers_of_run(f.workdir, f.split, f.data_dir, f.examples)
    out = Path(f.out).expanduser()
    write_study(layers, about, out, landmarks=f.landmarks, iterations=f.iterations)


if __name__ == "__main__":
    cli.run(main)
