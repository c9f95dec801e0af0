"""Measures the approximation on the queries, keys and values of a trained model."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from nystromformer.config import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.study import drawing, errors
from nystromformer.experiments.trained_run import Layer, load_run, record_qkv
from nystromformer.landmarks import LANDMARKS, nystrom_factors, nystrom_rows

LABELS = {x: x.replace("_", " ") for x in LANDMARKS} | {"kmeans": "k-means"}
BASELINES = ("linformer", "performer")  # of as many rows or features as landmarks
SEEDS = 8  # of random landmarks
PICTURED_HEADS = 6
PICTURED_COUNTS = (16, 64, 256)


def write_study(
    layers: Sequence[Layer],
    about: str,
    out: Path,
    *,
    landmarks: Sequence[int] | None,
    iterations: Sequence[int],
) -> None:
    """Writes the page, headed by `about`, its figures, and their numbers as CSV.

    Landmarks and iterations are their numbers; None = powers of two below the longest
    sequence. ConfigError for as many landmarks as tokens, which is exact.
    """
    most = int(max(layer.mask.sum(1).max() for layer in layers))
    counts = sorted(landmarks or (2**k for k in range(2, 10) if 2**k < most))
    if not counts or counts[-1] >= most:
        raise ConfigError(f"--landmarks must be below the longest sequence, {most}")
    made_by = provenance.source()
    markdown.open_folder(out, "landmarks.csv")
    with jax.enable_x64(True):
        tables = measure_all(layers, counts, iterations)
        figures = {
            "landmarks": drawing.draw_errors(tables["landmarks"], "num_landmarks"),
            "iterations": drawing.draw_errors(tables["iterations"], "num_pinv_iters"),
            "spectrum": drawing.draw_spectrum(tables["spectrum"]),
            **draw_matrices(layers, counts),
        }
    for name, rows in tables.items():
        rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    lines = [about]
    for name, figure in figures.items():
        save_figure(figure, out / name)
        title = name.capitalize()
        lines += [f"## {title}\n\n![{name}]({name}.png)\n\n{CAPTIONS[name]}\n"]
    (out / "README.md").write_text(markdown.page("Approximation", made_by, lines))
    print(f"{out}/README.md has {len(figures)} figures")


def layers_of_run(
    workdir: str, split: str, data_dir: str | None, examples: int
) -> tuple[list[Layer], str]:
    """The layers of a run for the longest examples of a split, and words on them."""
    run = load_run(workdir)
    data = run.task.load(split, data_dir or run.config.task.data_dir)
    rows = np.arange(len(data.labels))[:, None] if data.pairs is None else data.pairs
    longest = np.argsort(-data.lengths[rows].min(1), kind="stable")
    chosen = rows[longest[:examples]].ravel()
    tokens = np.asarray(data.inputs[chosen], np.int32)
    mask = np.arange(tokens.shape[1]) < data.lengths[chosen][:, None]
    layers = record_qkv(run.model.encoder, tokens, mask)
    step = (run.result or {}).get("best_step", "?")  # it may still be in training
    about = (
        f"- Run: {run.config.task.name} with {run.config.attention.name}, seed "
        f"{run.config.train.seed}, best weights of step {step}\n"
        f"- Inputs: queries, keys and values of {len(layers)} layers for the "
        f"{len(chosen)} longest sequences of {split}; the pictures show the longest\n"
    )
    return layers, about


def measure_all(
    layers: Sequence[Layer], counts: Sequence[int], iterations: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """The tables landmarks, iterations and spectrum."""
    methods, inverses = [], []
    for count in counts:
        size: dict[str, Any] = {"num_landmarks": count}
        methods += [
            {"method": label, **size, "landmarks": name, "landmark_seed": seed}
            for name, label in LABELS.items()
            for seed in range(SEEDS if name == "random" else 1)
        ]
        methods.append({"method": "double softmax", **size, "pinv": "identity"})
        methods += [{"method": x, **size, "attention": x} for x in BASELINES]
        size["method"] = f"{count} landmarks"
        inverses += [{**size, "num_pinv_iters": n} for n in iterations]
        inverses.append({**size, "pinv": "exact"})
    return {
        "landmarks": errors.measure_errors(layers, tqdm(methods, disable=None)),
        "iterations": errors.measure_errors(layers, tqdm(inverses, disable=None)),
        "spectrum": errors.spectra(layers),
    }


def draw_matrices(layers: Sequence[Layer], counts: Sequence[int]) -> dict[str, Figure]:
    """Heads of the longest example as matrices, as in Figs. 1-4 of the supplement."""
    count = max(x for x in counts if x <= max(64, counts[0]))
    shown = [n for n in PICTURED_COUNTS if n in counts] or counts[-3:]

    def product(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)

    def inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        z = nystrom_factors(query, key, mask, num_landmarks=count, **options)[1]
        return z / abs(z).max()

    choices = {label: {"landmarks": x} for x, label in LABELS.items()}
    numbers = {f"{n} landmarks": {"num_landmarks": n} for n in shown}
    inverses: dict[str, Any] = {"exact inverse": {"pinv": "exact"}}
    inverses |= {f"{n} iterations": {"num_pinv_iters": n} for n in (2, 4, 6)}
    iterates = inverses | {"double softmax": {"pinv": "identity"}}
    figures, exact = {}, {"exact": errors.softmax_matrix}
    for name, first, function, columns in (
        ("choices", exact, product, choices),
        ("numbers", exact, product, numbers),
        ("iterates", exact, product, iterates),
        ("inverses", {}, inverse, inverses),
    ):
        functions = {title: partial(function, **x) for title, x in columns.items()}
        found = errors.matrices(layers, 0, first | functions)
        evenly = np.linspace(0, len(found) - 1, min(PICTURED_HEADS, len(found)))
        pictures = {head: found[head] for head in ([*found][round(i)] for i in evenly)}
        figures[name] = drawing.draw_pictures(pictures)
    return figures


CAPTIONS = {
    "landmarks": f"""\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) by head, without the convolution, over valid tokens:
medians and quartiles over sequences of more tokens than landmarks ({SEEDS} seeds of
random ones). Double softmax has no inverse; other attentions have fresh parameters, as
many rows or features. landmarks.csv has ‖ŜV − SV‖∞ and Proposition 1's bound.""",
    "iterations": "The same with segment means; dashed: LAPACK's pseudo-inverse.",
    "spectrum": "Singular values of S as in Linformer's Fig. 1: medians of sequences.",
    "choices": "S and Ŝ by the choice of landmarks (supplement, Fig. 1), with errors.",
    "numbers": "S and Ŝ by the number of landmarks (supplement, Fig. 2).",
    "iterates": "S and Ŝ by the inverse of A (supplement, Fig. 3).",
    "inverses": "A⁺ and its iterates (supplement, Fig. 4), over their largest entries.",
}
