"""How good the approximation is, on what a trained model gives to its attention."""

import csv
import dataclasses
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from lra_tasks.progress import Progress
from nystromformer.config import ConfigError
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.lab.study import drawing
from nystromformer.lab.study.capture import Layer, capture
from nystromformer.lab.study.deviation import (
    matrices,
    measure_heads,
    middle,
    nystrom_matrix,
    spectra,
)
from nystromformer.lab.study.smooth import smooth_inputs
from nystromformer.lab.trained_run import load_run
from nystromformer.study import LANDMARKS, softmax_matrix
from nystromformer.training.data import Data
from nystromformer.training.files import write_text

TITLE = "Approximation"
HEADS, HEAD_DIM = 2, 32  # without a run
DRAWS = 8  # of random landmarks
PICTURED_HEADS = 6
PICTURED_COUNTS = (16, 64, 256)


@dataclasses.dataclass(frozen=True)
class Subject:
    """What is looked at: layers, a line about them, and the example to be drawn."""

    layers: list[Layer]
    about: str
    example: int
    tokens: list[str]


def approximation(flags: Any) -> None:
    """Writes the page that the flags of scripts/approximation.py ask for."""
    made_by, out = source(), Path(flags.out).expanduser()
    subject = from_run(flags) if flags.workdir else made_up(flags)
    most = int(max(layer.mask.sum(1).max() for layer in subject.layers))
    counts = sorted(set(flags.landmarks or [])) or [
        2**k for k in range(2, 10) if 2**k < most
    ]
    if not counts or counts[-1] >= most:
        raise ConfigError(
            f"the longest sequence has {most} tokens: --landmarks must be below that"
        )
    open_folder(out, TITLE)
    lines = [subject.about]
    with jax.enable_x64(True):
        tables, figures = study(subject, counts, flags.iterations)
    for name, rows in tables.items():
        write_text(out / f"{name}.csv", as_csv(rows))
    for name, figure in figures.items():
        save_figure(figure, out / name)
        lines += [f"## {name.capitalize()}\n", f"![{name}]({name}.png)\n"]
        lines += [f"{CAPTIONS[name]}\n"]
    write_text(out / PAGE, page(TITLE, made_by, lines))
    print(f"{out / PAGE} has {len(figures)} figures")


def from_run(flags: Any) -> Subject:
    """What the layers of a trained run get, for the longest examples of a split."""
    run = load_run(flags.workdir)
    config, task = run.experiment.config, run.experiment.task
    split = task.load(flags.split, flags.data_dir or config.task.data_dir)
    rows = (
        np.arange(split.num_examples)[:, None] if split.pairs is None else split.pairs
    )
    longest = np.argsort(-split.lengths[rows].min(1), kind="stable")
    example = longest[0] if flags.example is None else flags.example
    if example >= split.num_examples:
        raise ConfigError(
            f"--example={example}: there are {split.num_examples:,}, from 0 on"
        )
    others = longest[longest != example][: flags.examples - 1]
    chosen = np.array([example, *others])
    layers = capture(run.model, Data.put(split), chosen)
    options = config.attention.options.items()
    found = ", ".join(f"{name}={value}" for name, value in options)
    tested = f", test accuracy {run.result['test_accuracy']:.2%}" if run.result else ""
    about = (
        f"- Run: {config.task.name} with {config.attention.name} ({found}), seed "
        f"{config.train.seed}, weights of step {run.step:,}{tested}\n"
        f"- Inputs: queries, keys and values of {len(layers)} layers for the "
        f"{len(chosen)} longest {flags.split} examples; the pictures show example "
        f"{example}\n"
    )
    row = rows[example][0]
    tokens = split.inputs[row][: split.lengths[row]]
    if len(tokens) and isinstance(task.decode(tokens), str):
        labels = [str(task.decode(tokens[i : i + 1])) for i in range(len(tokens))]
    else:
        labels = [str(token) for token in tokens]
    if layers[0].mask[0].sum() > len(labels):
        labels.insert(0, "[CLS]")
    return Subject(layers, about, 0, labels)


def made_up(flags: Any) -> Subject:
    """HEADS of HEAD_DIM of smooth sequences, or of independent normal numbers."""
    length, examples = flags.length, flags.examples
    if flags.inputs == "smooth":
        sizes = {"batch_size": examples, "num_heads": HEADS, "head_dim": HEAD_DIM}
        arrays = np.asarray(smooth_inputs(length, **sizes), np.float64)
    else:
        shape = (3, examples, length, HEADS, HEAD_DIM)
        arrays = np.random.default_rng(0).normal(size=shape)
    layer = Layer(*arrays, mask=np.ones((examples, length), bool))
    about = f"- Inputs: {flags.inputs}, {examples} of length {length:,}\n"
    example = flags.example or 0
    if example >= examples:
        raise ConfigError(f"--example={example}: there are {examples}, from 0 on")
    return Subject([layer], about, example, [str(i) for i in range(length)])


def study(
    subject: Subject, counts: Sequence[int], iterations: Sequence[int]
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Figure]]:
    """Every table and every figure, by name."""
    of_landmarks: list[dict[str, Any]] = [
        {"landmarks": choice, "num_landmarks": count, "landmark_seed": seed}
        for choice in LANDMARKS
        for count in counts
        for seed in range(DRAWS if choice == "random" else 1)
    ]
    of_iterations: list[dict[str, Any]] = [
        {"num_landmarks": count, "inverse": inverse, "num_pinv_iters": steps}
        for count in counts
        for inverse, steps in [*(("iterative", x) for x in iterations), ("exact", 0)]
    ]
    parts = len(of_landmarks) + len(of_iterations) + 2
    with Progress("approximation", parts) as progress:

        def each(grid: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            for options in grid:
                yield options
                progress.update(1)

        tables = {
            "landmarks": measure_heads(subject.layers, each(of_landmarks)),
            "iterations": measure_heads(subject.layers, each(of_iterations)),
            "spectrum": spectra(subject.layers),
        }
        progress.update(1)
        means = [r for r in tables["landmarks"] if r["landmarks"] == LANDMARKS[0]]
        figures = {
            "landmarks": drawing.draw_landmarks(tables["landmarks"]),
            "iterations": drawing.draw_iterations(tables["iterations"]),
            "bound": drawing.draw_bound(means),
            "spectrum": drawing.draw_spectrum(tables["spectrum"]),
            **pictures(subject, counts),
        }
        progress.update(1)
    return tables, figures


def pictures(subject: Subject, counts: Sequence[int]) -> dict[str, Figure]:
    """Heads of one example as matrices, as in Figs. 1-4 of the supplement."""
    most = int(subject.layers[0].mask[subject.example].sum())
    fitting = [count for count in counts if count < most] or [most]
    count = max(x for x in fitting if x <= max(64, fitting[0]))
    ends = {fitting[0], fitting[len(fitting) // 2], fitting[-1]}

    def near(**options: Any) -> Callable[..., jax.Array]:
        return functools.partial(nystrom_matrix, **{"num_landmarks": count, **options})

    def inverse(query: jax.Array, key: jax.Array, mask: jax.Array, **x: Any) -> Any:
        return middle(query, key, mask, num_landmarks=count, **x)[1]

    by_inverse = {f"{n} iterations": {"num_pinv_iters": n} for n in (2, 4, 6)}
    by_inverse = {"exact inverse": {"inverse": "exact"}, **by_inverse}
    shown = [n for n in PICTURED_COUNTS if n in fitting] or sorted(ends)
    exact = {"exact": softmax_matrix}
    columns: dict[str, dict[str, Callable[..., jax.Array]]] = {
        "choices": exact | {x.replace("_", " "): near(landmarks=x) for x in LANDMARKS},
        "numbers": exact | {f"{n} landmarks": near(num_landmarks=n) for n in shown},
        "iterates": exact | {title: near(**x) for title, x in by_inverse.items()},
        "inverses": {
            title: functools.partial(inverse, **x) for title, x in by_inverse.items()
        },
    }
    functions = {(x, title): f for x, by in columns.items() for title, f in by.items()}
    found = matrices(subject.layers, subject.example, functions)
    evenly = np.linspace(0, len(found) - 1, min(PICTURED_HEADS, len(found)))
    heads = [[*found][round(i)] for i in evenly]
    return {
        name: drawing.draw_pictures(
            {head: {x: found[head][name, x] for x in columns[name]} for head in heads},
            subject.tokens,
        )
        for name in columns
    }


CAPTIONS = {
    "landmarks": f"""\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) of each head, without the convolution of V, in float64,
over valid tokens, for segment means, tokens drawn at random ({DRAWS} draws) and others,
with six iterations. Medians and quartiles over draws and sequences with more tokens
than landmarks; on the others the method is exact. Numbers:
[landmarks.csv](landmarks.csv).""",
    "iterations": """\
The same error for segment means against the number of iterations; dashed lines are
LAPACK's pseudo-inverse. [iterations.csv](iterations.csv) has the residual
‖AZA − A‖ / ‖A‖ as well.""",
    "bound": """\
Proposition 1: ‖SV − ŜV‖∞ ≤ (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, for every head and sequence,
with segment means and six iterations. Numbers: distance and bound in
[landmarks.csv](landmarks.csv).""",
    "spectrum": """\
As Fig. 1 of Linformer: the share of the sum of all n singular values of
S = softmax(Q Kᵀ / √H) that the r largest have, and that of the largest quarter, by
layer and head: medians over the sequences. Numbers: [spectrum.csv](spectrum.csv), as
shares of the largest.""",
    "choices": """\
As Fig. 1 of the supplement: S, and Ŝ by the choice of landmarks. Here and below, up to
six heads of one example, in the colours of the first column; below each its relative
error (Frobenius).""",
    "numbers": """\
As Fig. 2 of the supplement: S, and Ŝ by the number of landmarks (segment means).""",
    "iterates": """\
As Fig. 3 of the supplement: S, and Ŝ by the inverse of A (segment means).""",
    "inverses": """\
As Fig. 4 of the supplement: the pseudo-inverse of A, and the iterates.""",
}


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under a head of their names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()}
        )
    return text.getvalue()
