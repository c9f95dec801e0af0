"""Measures the approximation on the queries, keys and values of a trained model."""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from nystromformer.config import ConfigError
from nystromformer.experiments.page import PAGE, open_folder, page, source
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.study import drawing
from nystromformer.experiments.study.capture import Layer, capture
from nystromformer.experiments.study.deviation import matrices, measure_heads, spectra
from nystromformer.experiments.study.smooth import smooth_inputs
from nystromformer.experiments.trained_run import load_run
from nystromformer.landmarks import (
    LANDMARKS,
    nystrom_factors,
    nystrom_rows,
    softmax_matrix,
    standard_nystrom,
)
from nystromformer.training.data import Data
from nystromformer.training.metrics import write_text

TITLE = "Approximation"
HEADS, HEAD_DIM = 2, 32  # without a run
DRAWS = 8  # of random landmarks
PICTURED_HEADS = 6
PICTURED_COUNTS = (16, 64, 256)


class Subject(NamedTuple):
    """The inputs: layers, a line about them, and the example of the pictures."""

    layers: list[Layer]
    about: str
    example: int
    tokens: list[str]


def approximation(flags: Any) -> None:
    """Writes the page that the flags of scripts/approximation.py ask for."""
    made_by, out = source(), Path(flags.out).expanduser()
    subject = from_run(flags) if flags.workdir else made_up(flags)
    most = int(max(layer.mask.sum(1).max() for layer in subject.layers))
    powers = [2**k for k in range(2, 10) if 2**k < most]
    counts = sorted(set(flags.landmarks or powers))
    if not counts or counts[-1] >= most:
        raise ConfigError(
            f"the longest sequence has {most} tokens: --landmarks must be below that"
        )
    open_folder(out, TITLE)
    with jax.enable_x64(True):
        tables = measure_all(subject.layers, counts, flags.iterations)
        figures = {**curves(tables), **pictures(subject, counts)}
    for name, rows in tables.items():
        text = rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        write_text(out / f"{name}.csv", text)
    lines = [subject.about]
    for name, figure in figures.items():
        save_figure(figure, out / name)
        lines += [f"## {name.capitalize()}\n", f"![{name}]({name}.png)\n"]
        lines += [f"{CAPTIONS[name]}\n"]
    write_text(out / PAGE, page(TITLE, made_by, lines))
    print(f"{out / PAGE} has {len(figures)} figures")


def from_run(flags: Any) -> Subject:
    """Inputs of the layers of a trained run, for the longest examples of a split."""
    run = load_run(flags.workdir)
    config, task = run.config, run.task
    split = task.load(flags.split, flags.data_dir or config.task.data_dir)
    singles = np.arange(split.num_examples)[:, None]
    rows = singles if split.pairs is None else split.pairs
    longest = np.argsort(-split.lengths[rows].min(1), kind="stable")
    example = longest[0] if flags.example is None else flags.example
    check_example(example, split.num_examples)
    others = longest[longest != example][: flags.examples - 1]
    layers = capture(run.model, Data.put(split), np.array([example, *others]))
    options = config.attention.options.items()
    found = ", ".join(f"{name}={value}" for name, value in options)
    accuracy = (run.result or {}).get("test_accuracy")
    tested = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
    about = (
        f"- Run: {config.task.name} with {config.attention.name} ({found}), seed "
        f"{config.train.seed}{tested}\n"
        f"- Inputs: queries, keys and values of {len(layers)} layers for the "
        f"{1 + len(others)} longest {flags.split} examples; the pictures show example "
        f"{example}\n"
    )
    row = rows[example][0]
    tokens = split.inputs[row][: split.lengths[row]]
    as_text = isinstance(task.decode(tokens), str)
    labels = [str(task.decode(np.array([x])) if as_text else x) for x in tokens]
    if layers[0].mask[0].sum() > len(labels):
        labels.insert(0, "[CLS]")
    return Subject(layers, about, 0, labels)


def made_up(flags: Any) -> Subject:
    """HEADS of HEAD_DIM of smooth sequences, or of independent normal numbers."""
    length, examples, example = flags.length, flags.examples, flags.example or 0
    check_example(example, examples)
    if flags.inputs == "smooth":
        sizes = {"batch_size": examples, "num_heads": HEADS, "head_dim": HEAD_DIM}
        arrays = np.asarray(smooth_inputs(length, **sizes), np.float64)
    else:
        shape = (3, examples, length, HEADS, HEAD_DIM)
        arrays = np.random.default_rng(0).normal(size=shape)
    layer = Layer(*arrays, mask=np.ones((examples, length), bool))
    about = f"- Inputs: {flags.inputs}, {examples} of length {length:,}\n"
    return Subject([layer], about, example, [str(i) for i in range(length)])


def check_example(example: int, count: int) -> None:
    """Raises ConfigError if there is no example of that number."""
    if example >= count:
        raise ConfigError(f"--example={example}: there are {count:,}, from 0 on")


def measure_all(
    layers: Sequence[Layer], counts: Sequence[int], iterations: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """The tables by name: rows of `measure_heads`, and spectra."""
    of_landmarks = [
        {"landmarks": choice, "num_landmarks": count, "landmark_seed": seed}
        for choice in LANDMARKS
        for count in counts
        for seed in range(DRAWS if choice == "random" else 1)
    ]
    of_iterations = [
        {"num_landmarks": count, "pinv": pinv, "num_pinv_iters": steps}
        for count in counts
        for pinv, steps in [*(("iterative", n) for n in iterations), ("exact", 0)]
    ]
    total = len(of_landmarks) + len(of_iterations)
    with tqdm(total=total, desc="approximation", disable=None) as progress:

        def each(grid: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            for options in grid:
                yield options
                progress.update(1)

        return {
            "landmarks": measure_heads(layers, each(of_landmarks)),
            "iterations": measure_heads(layers, each(of_iterations)),
            "spectrum": spectra(layers),
        }


def curves(tables: dict[str, pd.DataFrame]) -> dict[str, Figure]:
    """The figures of the tables by name."""
    rows = tables["landmarks"]
    means = rows[rows["landmarks"] == "segment_means"]
    return {
        "landmarks": drawing.draw_landmarks(rows),
        "iterations": drawing.draw_iterations(tables["iterations"]),
        "bound": drawing.draw_bound(means),
        "spectrum": drawing.draw_spectrum(tables["spectrum"]),
    }


def pictures(subject: Subject, counts: Sequence[int]) -> dict[str, Figure]:
    """Heads of one example as matrices, as in Figs. 1-4 of the supplement."""
    most = int(subject.layers[0].mask[subject.example].sum())
    fitting = [count for count in counts if count < most] or [most]
    count = max(x for x in fitting if x <= max(64, fitting[0]))
    ends = {fitting[0], fitting[len(fitting) // 2], fitting[-1]}
    shown = [n for n in PICTURED_COUNTS if n in fitting] or sorted(ends)

    def near(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)  # type: ignore

    def inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        return nystrom_factors(query, key, mask, num_landmarks=count, **options)[1]

    by = functools.partial
    exact = {"exact": softmax_matrix}
    choices = {drawing.spoken(x): by(near, landmarks=x) for x in LANDMARKS}
    choices["after softmax"] = by(standard_nystrom, num_landmarks=count)
    inverses = {f"{n} iterations": {"num_pinv_iters": n} for n in (2, 4, 6)}
    inverses = {"exact inverse": {"pinv": "exact"}, **inverses}
    columns: dict[str, dict[str, Callable[..., jax.Array]]] = {
        "choices": exact | choices,
        "numbers": exact | {f"{n} landmarks": by(near, num_landmarks=n) for n in shown},
        "iterates": exact | {title: by(near, **x) for title, x in inverses.items()},
        "inverses": {title: by(inverse, **x) for title, x in inverses.items()},
    }
    figures = {}
    for name, functions in columns.items():
        found = matrices(subject.layers, subject.example, functions)
        evenly = np.linspace(0, len(found) - 1, min(PICTURED_HEADS, len(found)))
        heads = [[*found][round(i)] for i in evenly]
        chosen = {head: found[head] for head in heads}
        own = name == "inverses"
        figures[name] = drawing.draw_pictures(chosen, subject.tokens, own_colors=own)
    return figures


CAPTIONS = {
    "landmarks": f"""\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) of each head, without the convolution of V, in float64,
over valid tokens, for segment means, tokens drawn at random ({DRAWS} draws), k-means
and farthest tokens, with six iterations. Medians and quartiles over draws and sequences
with more tokens than landmarks; on shorter ones the method is exact. Numbers:
[landmarks.csv](landmarks.csv).""",
    "iterations": """\
The same error for segment means against the number of iterations; dashed lines are
LAPACK's pseudo-inverse. [iterations.csv](iterations.csv) also has the residual
‖AZA − A‖ / ‖A‖.""",
    "bound": """\
Proposition 1: ‖SV − ŜV‖∞ ≤ (1 + ‖A⁺‖∞ + ‖A⁺ − Z‖∞) ‖V‖∞, for every head and sequence,
with segment means and six iterations. Numbers: distance and bound in
[landmarks.csv](landmarks.csv).""",
    "spectrum": """\
As Fig. 1 of Linformer: the sum of the r largest singular values of
S = softmax(Q Kᵀ / √H) as a share of the sum of all n, and that of the largest quarter
by layer and head; medians over the sequences. Numbers: [spectrum.csv](spectrum.csv),
relative to the largest.""",
    "choices": """\
As Fig. 1 of the supplement: S, and Ŝ for each choice of landmarks. "After softmax"
samples rows and columns of S itself at random tokens, eqs. (4)-(6), which needs all of
S. Here and below: up to six heads of one example, in the colours of the first column,
with the relative error (Frobenius) below each picture.""",
    "numbers": """\
As Fig. 2 of the supplement: S, and Ŝ for each number of landmarks (segment means).""",
    "iterates": """\
As Fig. 3 of the supplement: S, and Ŝ for each inverse of A (segment means).""",
    "inverses": """\
As Fig. 4 of the supplement: the pseudo-inverse of A, and the iterates, each in its own
colours, with their range below. The smallest singular values of A dominate its
pseudo-inverse; the iterates invert the largest first.""",
}
