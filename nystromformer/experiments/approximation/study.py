"""Measures the approximation on the queries, keys and values of a trained model."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.approximation import measurements
from nystromformer.experiments.approximation.drawings import (
    MAX_PANELS,
    Frame,
    draw_errors,
    draw_pictures,
    draw_spectrum,
    evenly_spaced,
)
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.recorded_layers import Layer
from nystromformer.experiments.trained_run import TrainedRun
from nystromformer.factors import nystrom_factors, nystrom_rows, softmax_matrix
from nystromformer.landmarks import LANDMARKS

LABELS = {name: name.replace("_", " ") for name in LANDMARKS} | {"kmeans": "k-means"}
BASELINES = ("linformer", "performer")  # with as many rows or features as landmarks
ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
NUM_SEEDS = 8  # of random landmarks
PICTURED_HEADS = 6
PICTURED_LANDMARKS = 64  # at most, where the run has no number of its own
CAPTIONS = {
    "landmarks": f"""\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) by head, without the convolution, over valid tokens:
medians and quartiles over sequences of more tokens than landmarks ({NUM_SEEDS} seeds of
random ones). Double softmax has no inverse; Linformer and Performer are untrained, with
as many rows or features. At most {MAX_PANELS} heads are drawn. landmarks.csv has all,
and ‖ŜV − SV‖∞ and Proposition 1's bound.""",
    "iterations": "The same with segment means; dashed: LAPACK's pseudo-inverse.",
    "spectrum": "Singular values of S as in Linformer's Fig. 1: medians of sequences.",
    "choices": """\
S and Ŝ by the choice of {count} landmarks (supplement, Fig. 1), with errors.""",
    "numbers": "S and Ŝ by the number of landmarks (supplement, Fig. 2).",
    "iterates": "S and Ŝ of {count} landmarks by the inverse (supplement, Fig. 3).",
    "inverses": """\
A⁺ of {count} landmarks and its iterates (supplement, Fig. 4), over their largest
entries.""",
}


def write_study(
    run: TrainedRun,
    out: Path,
    *,
    examples: int,
    landmarks: Sequence[int] | None = None,
    data_dir: str | None = None,
) -> None:
    """Writes the page, its figures, and their numbers as CSV.

    Args:
      run: the model, whose attention has queries and keys.
      out: the folder.
      examples: how many examples are measured: the longest of validation.
      landmarks: numbers of landmarks; None is the powers of two below the longest
        sequence, and the run's own number: of several the largest.
      data_dir: the folder of the data; None is that of the run.

    Raises:
      ConfigError: for as many landmarks as tokens, and a folder with other files.
    """
    inputs, lengths = _longest_sequences(run, examples, data_dir)
    layers = run.layers(inputs, lengths)
    max_length = int(max(layer.mask.sum(1).max() for layer in layers))
    run_landmarks = own_landmarks(run.config)
    counts = sorted(landmarks or default_landmarks(run_landmarks, max_length))
    if not counts or counts[-1] >= max_length:
        raise ConfigError(
            f"--landmarks must be below the longest sequence, {max_length}"
        )
    pictured_count = run_landmarks
    if run_landmarks not in counts:
        limit = max(PICTURED_LANDMARKS, counts[0])
        pictured_count = max(count for count in counts if count <= limit)

    source = provenance.source()
    markdown.open_folder(out, "landmarks.csv")
    with jax.enable_x64(True):
        tables = measure_all(layers, counts)
        print("drawing the figures…", flush=True)
        figures = {
            "landmarks": draw_errors(tables["landmarks"], "num_landmarks"),
            "iterations": draw_errors(tables["iterations"], "num_pinv_iters"),
            "spectrum": draw_spectrum(tables["spectrum"]),
            **draw_matrices(layers, counts, pictured_count),
        }

    for name, rows in tables.items():
        rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    lines = [_about(run, num_layers=len(layers), num_sequences=len(inputs))]
    for name, figure in figures.items():
        save_figure(figure, out / name)
        caption = CAPTIONS[name].format(count=pictured_count)
        lines.append(f"## {name.capitalize()}\n\n![{name}]({name}.png)\n\n{caption}\n")
    (out / "README.md").write_text(markdown.make_page("Approximation", source, lines))
    print(f"{out}/README.md has {len(figures)} figures")


def _longest_sequences(
    run: TrainedRun, num_examples: int, data_dir: str | None
) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and lengths of the longest examples of validation.

    Of pairs, those whose shorter sequence is the longest; both sequences of each.
    """
    split = run.task.load("validation", data_dir or run.config.task.data_dir)
    rows = split.pairs
    if rows is None:
        rows = np.arange(len(split.labels))[:, None]
    longest_first = np.argsort(-split.lengths[rows].min(1), kind="stable")
    chosen_rows = rows[longest_first[:num_examples]].ravel()
    return split.inputs[chosen_rows], split.lengths[chosen_rows]


def _about(run: TrainedRun, *, num_layers: int, num_sequences: int) -> str:
    """Two items of a list: the run, and what of it was measured."""
    step = (run.result or {}).get("best_step", "?")  # it may still be in training
    return (
        f"- Run: {run.config.task.name} with {run.config.attention}, seed "
        f"{run.config.train.seed}, best weights of step {step}\n"
        f"- Inputs: queries, keys and values of {num_layers} layers for the "
        f"{num_sequences} longest sequences of validation, in the pictures the "
        "longest\n"
    )


def own_landmarks(config: Config) -> int:
    """Returns a run's number of landmarks: of several the largest, 0 if it has none."""
    return max(options.get("num_landmarks", 0) for _, options in config.attentions())


def default_landmarks(run_landmarks: int, max_length: int) -> set[int]:
    """Returns powers of two from 4 on and the run's own number.

    All are below `max_length` tokens.
    """
    counts = {2**k for k in range(2, 10)}
    counts.add(run_landmarks)
    return {count for count in counts if 0 < count < max_length}


def measure_all(layers: Sequence[Layer], counts: Sequence[int]) -> dict[str, Frame]:
    """Measures errors by landmarks and by iterations, and the spectra of S.

    Args:
      layers: of the model.
      counts: numbers of landmarks.
    """
    grids = {
        "landmarks": _landmark_settings(counts),
        "iterations": _iteration_settings(counts),
    }
    tables = {}
    for name, grid in grids.items():
        print(f"measuring {name}: {len(grid)} settings…", flush=True)
        progress = tqdm(grid, disable=None)
        tables[name] = measurements.measure_errors(layers, progress)
    print("measuring spectra…", flush=True)
    tables["spectrum"] = measurements.measure_spectra(layers)
    return tables


def _landmark_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each choice of landmarks, no inverse, and the baselines, by their size."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        for name, label in LABELS.items():
            for seed in range(NUM_SEEDS if name == "random" else 1):
                settings.append(
                    {
                        "method": label,
                        "num_landmarks": count,
                        "landmarks": name,
                        "landmark_seed": seed,
                    }
                )
        settings.append(
            {"method": "double softmax", "num_landmarks": count, "pinv": "identity"}
        )
        for name in BASELINES:
            settings.append({"method": name, "num_landmarks": count, "attention": name})
    return settings


def _iteration_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each number of iterations, and LAPACK's inverse, by the number of landmarks."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        size = {"method": f"{count} landmarks", "num_landmarks": count}
        settings.extend({**size, "num_pinv_iters": n} for n in ITERATIONS)
        settings.append({**size, "pinv": "exact"})
    return settings


def draw_matrices(
    layers: Sequence[Layer], counts: Sequence[int], pictured_count: int
) -> dict[str, Figure]:
    """Draws heads of the longest example, as Figs. 1-4 of the supplement.

    Args:
      layers: of the model.
      counts: numbers of landmarks, the largest of which stand side by side.
      pictured_count: the number of landmarks in all other pictures.
    """

    def approximation(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        options = {"num_landmarks": pictured_count, **options}
        return nystrom_rows(query, key, slice(None), mask, **options)

    def inverse(query: Any, key: Any, mask: Any, **options: Any) -> jax.Array:
        _, z, _ = nystrom_factors(
            query, key, mask, num_landmarks=pictured_count, **options
        )
        return z / abs(z).max()

    choices = {label: {"landmarks": name} for name, label in LABELS.items()}
    numbers = {f"{n} landmarks": {"num_landmarks": n} for n in counts[-3:]}
    inverses: dict[str, dict[str, Any]] = {"exact inverse": {"pinv": "exact"}}
    for n in (2, 4, 6):
        inverses[f"{n} iterations"] = {"num_pinv_iters": n}
    iterates = inverses | {"double softmax": {"pinv": "identity"}}

    exact = {"exact": softmax_matrix}
    return {
        "choices": _draw(layers, exact | _variants(approximation, choices)),
        "numbers": _draw(layers, exact | _variants(approximation, numbers)),
        "iterates": _draw(layers, exact | _variants(approximation, iterates)),
        "inverses": _draw(layers, _variants(inverse, inverses)),
    }


def _variants(
    function: Callable[..., Any], options_of_title: Mapping[str, Mapping[str, Any]]
) -> dict[str, Callable[..., Any]]:
    """The function with each of these options."""
    return {
        title: functools.partial(function, **options)
        for title, options in options_of_title.items()
    }


def _draw(
    layers: Sequence[Layer], functions: Mapping[str, Callable[..., Any]]
) -> Figure:
    """Draws what functions of a head give for some heads of the longest example."""
    compiled = {
        title: measurements.vmap_heads(function)
        for title, function in functions.items()
    }
    pictures = measurements.compute_matrices(layers, 0, compiled)
    heads = evenly_spaced(list(pictures), PICTURED_HEADS)
    return draw_pictures({head: pictures[head] for head in heads})
