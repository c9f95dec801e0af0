"""Measures how well attention is approximated inside a trained model.

    python scripts/approximation.py --workdir=RUN --out=DIR

writes DIR/README.md with figures, and their numbers as CSV. A model of short ListOps (2
layers, 48 tokens) took about 3 minutes of processor time. One of Text (4 layers, 1,024
tokens) took 52 minutes on two CPU cores beside other work, 39 of them for the exchange
of attentions, which --swap_examples=0 leaves out.
"""

import start

start.prepare()

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.approximation.study_page import write_study
from nystromformer.experiments.trained_run import load_run

_WORKDIR = flags.DEFINE_string("workdir", None, "folder of a run", required=True)
_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_EXAMPLES = flags.DEFINE_integer("examples", 8, "number of longest examples", 1)
_LANDMARKS = flags.DEFINE_multi_integer("landmarks", None, "default: 4, 8, …, 512", 1)
_SWAP_EXAMPLES = flags.DEFINE_integer(
    "swap_examples",
    500,
    "examples on which exact attention is exchanged layer by layer; 0 = none",
    0,
)
_SOURCE_DIR = flags.DEFINE_string("source_dir", None, "folder of sources, if moved")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of the data, if it has moved")


def main() -> None:
    """Writes the study of a run."""
    write_study(
        load_run(str(_WORKDIR.value), _SOURCE_DIR.value),
        cli.local_folder(_OUT.value),
        examples=_EXAMPLES.value,
        landmarks=_LANDMARKS.value,
        swap_examples=_SWAP_EXAMPLES.value,
        data_dir=_DATA_DIR.value,
    )


if __name__ == "__main__":
    cli.run(main)
