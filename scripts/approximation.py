"""How good the approximation is, on what a trained model gives to its attention.

python scripts/approximation.py --workdir=RUN --out=DIR
python scripts/approximation.py --inputs=smooth --length=512 --out=DIR

writes DIR/README.md with its figures, and their numbers as CSV: the error against the
number and the choice of landmarks and against the iterations towards the inverse, the
bound of Proposition 1, spectra, and heads as matrices.
"""

from absl import flags

from lra_tasks.base import SPLITS
from nystromformer.lab import cli
from nystromformer.lab.study.approximation import approximation

ITERATIONS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20]

cli.define_workdir("a run of scripts/train.py")
flags.DEFINE_string("out", None, "the folder to write", required=True)
flags.DEFINE_integer("examples", 8, "sequences to look at", 1)
flags.DEFINE_integer("example", None, "the one in the pictures; default the longest", 0)
flags.DEFINE_multi_integer("landmarks", None, "numbers of them; repeat", 1)
flags.DEFINE_multi_integer("iterations", ITERATIONS, "towards the inverse; repeat", 0)
flags.DEFINE_enum("split", "validation", SPLITS, "of a run: which examples")
flags.DEFINE_string("data_dir", None, "of a run: where its data lie")
flags.DEFINE_enum("inputs", "smooth", ["smooth", "random"], "without a run")
flags.DEFINE_integer("length", 512, "without a run: tokens", 2)

if __name__ == "__main__":
    cli.run(lambda: approximation(flags.FLAGS))
