"""How good the approximation is, on what a trained model gives to its attention.

python scripts/approximation.py --workdir=RUN --out=DIR
python scripts/approximation.py --inputs=smooth --length=512 --out=DIR

writes DIR/README.md and five figures, each with a CSV: the error against the number and
the choice of landmarks and against the iterations towards the inverse, the bound of
Proposition 1, spectra, and heads as matrices.
"""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from lra_tasks.base import SPLITS
from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.lab.study import drawing, errors
from nystromformer.lab.study.capture import Layer, capture
from nystromformer.lab.study.smooth import smooth_inputs
from nystromformer.lab.trained_run import TrainedRun
from nystromformer.training.data import Data
from nystromformer.training.files import write_text

TITLE = "Approximation"
ITERATIONS = [1, 2, 3, 4, 6, 8, 10, 12, 16, 20]
PUBLISHED_ITERATIONS = 6
HEADS, HEAD_DIM = 2, 32  # without a run

_WORKDIR = cli.define_workdir("a run of scripts/train.py")
_OUT = flags.DEFINE_string("out", None, "the folder to write")
_EXAMPLES = flags.DEFINE_integer("examples", 8, "sequences to look at", 1)
_LANDMARKS = flags.DEFINE_multi_integer("landmarks", None, "numbers of them; repeat", 1)
_ITERATIONS = flags.DEFINE_multi_integer(
    "iterations", ITERATIONS, "towards the inverse; repeat", 0
)
_SPLIT = flags.DEFINE_enum("split", "validation", SPLITS, "of a run: which examples")
_DATA_DIR = flags.DEFINE_string("data_dir", None, "of a run: where its data lie")
_INPUTS = flags.DEFINE_enum("inputs", "smooth", ["smooth", "random"], "without a run")
_LENGTH = flags.DEFINE_integer("length", 512, "without a run: tokens", 2)
flags.mark_flag_as_required("out")


def main() -> None:
    out = Path(str(_OUT.value)).expanduser()
    made_by = source()
    layers, about = from_run() if _WORKDIR.value else made_up()
    most = int(max(layer.mask.sum(1).max() for layer in layers))
    counts = sorted(set(_LANDMARKS.value or [])) or [
        2**k for k in range(2, 10) if 2**k < most
    ]
    if not counts or counts[-1] >= most:
        raise ConfigError(
            f"the longest sequence has {most} tokens: --landmarks must be below that"
        )
    open_folder(out, TITLE)
    with jax.enable_x64(True):
        lines = draw_all(out, layers, counts)
    write_text(out / PAGE, page(TITLE, made_by, [about, *lines]))


def from_run() -> tuple[list[Layer], str]:
    """What the layers of a trained run get, for the longest examples of a split."""
    run = TrainedRun.load(Path(str(_WORKDIR.value)).expanduser())
    config = run.experiment.config
    task = run.experiment.task
    split = task.load(_SPLIT.value, _DATA_DIR.value or config.task.data_dir)
    lengths = (
        split.lengths if split.pairs is None else split.lengths[split.pairs].min(1)
    )
    longest = np.argsort(-lengths, kind="stable")[: _EXAMPLES.value]
    layers = capture(run.model(), Data.put(split), np.sort(longest))
    found = ", ".join(
        f"{name}={value}" for name, value in config.attention.options.items()
    )
    tested = f", test accuracy {run.result['test_accuracy']:.2%}" if run.result else ""
    about = (
        f"- Run: {config.task.name} with {config.attention.name} ({found}), seed "
        f"{config.train.seed}, weights of step {run.step:,}{tested}\n"
        f"- Inputs: queries, keys and values of {len(layers)} layers for the "
        f"{len(longest)} longest {_SPLIT.value} examples\n"
    )
    return layers, about


def made_up() -> tuple[list[Layer], str]:
    """HEADS of HEAD_DIM of smooth sequences, or of independent normal numbers."""
    length, examples = _LENGTH.value, _EXAMPLES.value
    if _INPUTS.value == "smooth":
        smooth = smooth_inputs(
            length, batch_size=examples, num_heads=HEADS, head_dim=HEAD_DIM
        )
        arrays = np.asarray(smooth, np.float64)
    else:
        shape = (3, examples, length, HEADS, HEAD_DIM)
        arrays = np.random.default_rng(0).normal(size=shape)
    layer = Layer(*arrays, mask=np.ones((examples, length), bool))
    return [layer], f"- Inputs: {_INPUTS.value}, {examples} of length {length:,}\n"


def draw_all(out: Path, layers: list[Layer], counts: list[int]) -> list[str]:
    """Every figure and its CSV; the lines of the page."""
    middle = counts[len(counts) // 2]
    shown = sorted({counts[0], middle, counts[-1]})
    variants: list[dict[str, Any]] = [
        *({"num_landmarks": count, "landmarks": "segment_means"} for count in shown),
        *({"num_landmarks": middle, "landmarks": x} for x in ("random", "kmeans")),
    ]
    titles = [
        f"{x['num_landmarks']} {x['landmarks'].replace('_', ' ')}" for x in variants
    ]
    example = int(layers[0].mask.sum(1).argmax())
    pictures, of_matrices = errors.matrices(layers, example, variants)
    of_landmarks = errors.landmark_rows(layers, counts, PUBLISHED_ITERATIONS)
    of_iterations = errors.iteration_rows(layers, counts, _ITERATIONS.value)
    of_bound = errors.bound_rows(layers, counts, PUBLISHED_ITERATIONS)
    of_spectrum = errors.spectrum_rows(layers)
    figures = {
        "landmarks": (drawing.draw_landmarks(of_landmarks), of_landmarks),
        "iterations": (drawing.draw_iterations(of_iterations), of_iterations),
        "bound": (drawing.draw_bound(of_bound), of_bound),
        "spectrum": (drawing.draw_spectrum(of_spectrum), of_spectrum),
        "matrices": (
            drawing.draw_matrices(pictures, of_matrices, ["exact", *titles]),
            of_matrices,
        ),
    }
    lines = []
    for name, (figure, rows) in figures.items():
        write_text(out / f"{name}.csv", as_csv(rows))
        save_figure(figure, out / name)
        lines += [f"## {name.capitalize()}\n", f"![{name}]({name}.png)\n"]
        lines += [f"{CAPTIONS[name]} Numbers: [{name}.csv]({name}.csv).\n"]
    return lines


CAPTIONS = {
    "landmarks": """\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) of each head, without the convolution of V, in float64,
over valid tokens, for segment means, tokens drawn at random (one draw) and k-means,
with six iterations. Medians and quartiles over sequences with more tokens than
landmarks; on the others the method is exact.""",
    "iterations": """\
The same error for segment means against the number of iterations; dashed lines are
LAPACK's pseudo-inverse. The CSV has ‖AZA − A‖ / ‖A‖ as well.""",
    "bound": """\
Proposition 1: ‖SV − ŜV‖∞ ≤ (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, for every head and sequence,
with six iterations.""",
    "spectrum": """\
Singular values of S = softmax(Q Kᵀ / √H), divided by the largest: medians and quartiles
over the sequences that have so many tokens.""",
    "matrices": """\
S and what stands for it, every head of one example, in the colours of S; below each
‖Ŝ − S‖ / ‖S‖ (Frobenius).""",
}


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows under a head of their names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
        )
    return text.getvalue()


if __name__ == "__main__":
    cli.run(main)
