"""Measures the approximation inside a trained model, and writes a page of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

from nystromformer.config import Config
from nystromformer.errors import ConfigError
from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.approximation import (
    causes,
    columns,
    diagnosis,
    measurements,
    swap,
    swap_page,
)
from nystromformer.experiments.approximation.pictures import (
    LABELS,
    MAX_PANELS,
    draw_errors,
    draw_matrices,
    draw_spectrum,
    draw_swaps,
)
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.recorded_layers import AttentionInputs
from nystromformer.experiments.trained_run import TrainedRun

OWN_FILE = "landmarks.csv"  # every study has it
BASELINES = ("linformer", "performer")  # with as many rows or features as landmarks
ITERATIONS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20)
NUM_DRAWS = 8  # of random landmarks and of features
PICTURED_LANDMARKS = 64  # at most, where the run's own number is not measured
CAPTIONS = {
    "landmarks": """\
‖ŜV − SV‖ / ‖SV‖ (Frobenius) by head, without the convolution, over valid tokens:
medians and quartiles over sequences of more tokens than landmarks, and over the
{num_draws} draws of what is drawn. Double softmax has no inverse; Linformer and
Performer are untrained, with as many rows or features. At most {max_panels} heads are
drawn. landmarks.csv has all, and ‖ŜV − SV‖∞ and Proposition 1's bound.""",
    "causes": """\
The same, split into causes. Best rank is the matrix of rank M nearest to S; best middle
matrix is the one that brings the segment means nearest to S; Nyström has six iterations
for it, or the exact inverse, or none. The standard Nyström method samples rows and
columns of S after the softmax, and needs all of S for it; "iterated" inverts its sample
by six iterations, which regularise. causes.csv has all heads and draws, the table below
their medians.""",
    "limits": """\
The error of Nyström attention by layer and head, and what limits it where it is over
{tolerance}: R the rank, L the landmarks, I the inverse.""",
    "iterations": """\
‖ŜV − SV‖ / ‖SV‖ with segment means, by the number of iterations. The dashed line is
LAPACK's pseudo-inverse.""",
    "spectrum": """\
Singular values of S as in Linformer's Fig. 1, medians of sequences: their cumulative
sum over that of all, and on the right its value at a quarter of the ranks, which is 1
where S has no higher rank.""",
    "choices": """\
S and Ŝ by the choice of {count} landmarks (supplement, Fig. 1), with errors. The last
two are of the standard Nyström method.""",
    "numbers": "S and Ŝ by the number of landmarks (supplement, Fig. 2).",
    "iterates": "S and Ŝ of {count} landmarks by the inverse of A.",
    "inverses": """\
A⁺ of {count} landmarks and its iterates (supplement, Figs. 3 and 4), each divided by
its largest entry. The errors compare these divided matrices; the table has those of the
matrices themselves, ‖Z − A⁺‖ / ‖A⁺‖.""",
}
TABLE = """\
Medians over sequences and draws. × is the largest error of {num_draws} draws over the
smallest. Z is the inverse of six iterations; AZA = A for every generalised inverse.
"Limited by" names the first of rank, landmarks and inverse that is over {tolerance}.
"""


class Study(NamedTuple):
    """What was measured inside a model.

    about: the run and its inputs, in Markdown.
    tables: the rows of all measurements, by the names of their CSV files.
    summary: the table of causes, as `diagnosis.summarize` makes it.
    figures: by their names in CAPTIONS.
    pictured_count: the number of landmarks in the pictures of one number.
    swaps: what the model loses without exact attention, if that was measured.
    """

    about: str
    tables: Mapping[str, pd.DataFrame]
    summary: pd.DataFrame
    figures: Mapping[str, Figure]
    pictured_count: int
    swaps: swap.Swaps | None = None

    def write(self, out: Path, made_by: Mapping[str, Any]) -> None:
        """Writes README.md, its figures, and their numbers as CSV.

        Args:
          out: a folder that exists.
          made_by: command, commit, device and versions.
        """
        for name, rows in self.tables.items():
            rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
        for name, figure in self.figures.items():
            save_figure(figure, out / name)
        if self.swaps is not None:
            save_figure(draw_swaps(self.swaps), out / "swaps")
        page = markdown.make_page("Approximation", made_by, self.describe())
        (out / "README.md").write_text(page)

    def describe(self) -> list[str]:
        """Returns the lines of the page behind its head."""
        lines = [self.about]
        if self.swaps is not None:
            lines.append("## What an exchange costs\n")
            lines.extend(swap_page.describe_swaps(self.swaps))
            lines.append("![The change by landmarks and layers](swaps.png)\n")
        numbers = {
            "count": self.pictured_count,
            "max_panels": MAX_PANELS,
            "num_draws": NUM_DRAWS,
            "tolerance": diagnosis.TOLERANCE,
        }
        for name in self.figures:
            caption = CAPTIONS[name].format(**numbers)
            picture = f"![{name}]({name}.png)"
            lines.append(f"## {name.capitalize()}\n\n{picture}\n\n{caption}\n")
        lines.append(f"## Table of causes\n\n{TABLE.format(**numbers)}")
        lines.extend(table_of_causes(self.summary))
        return lines


def write_study(
    run: TrainedRun,
    out: Path,
    *,
    examples: int,
    landmarks: Sequence[int] | None = None,
    swap_examples: int = 0,
    data_dir: str | None = None,
) -> None:
    """Measures a study, and writes its page, figures and numbers.

    Args:
      run: the model, whose attention has queries and keys.
      out: the folder.
      examples: how many examples are measured: the longest of validation.
      landmarks: the numbers of landmarks to measure; None takes 4, 8, …, 512 and the
        run's own number (the largest, if its layers differ), as far as they are below
        the longest sequence.
      swap_examples: how many examples measure what the model loses where its exact
        attention is exchanged; 0 = this is not measured. Nor is it where a layer has
        another attention.
      data_dir: the folder of the data; None is that of the run.

    Raises:
      ConfigError: as in `choose_landmarks`, and if the folder has other files.
    """
    markdown.check_folder(out, OWN_FILE)
    inputs, lengths = _longest_sequences(run, examples, data_dir)
    layers = run.layers(inputs, lengths)
    max_length = int(max(inputs.mask.sum(1).max() for inputs in layers))
    counts = choose_landmarks(landmarks, own_landmarks(run.config), max_length)

    made_by = provenance.collect()
    out.mkdir(parents=True, exist_ok=True)
    study = measure_study(
        run, layers, counts, swap_examples=swap_examples, data_dir=data_dir
    )
    study.write(out, made_by)
    print(f"{out}/README.md has {len(study.figures)} figures")
    if study.swaps is not None:
        print(swap_page.describe_advice(study.swaps))


def measure_study(
    run: TrainedRun,
    layers: Sequence[AttentionInputs],
    counts: Sequence[int],
    *,
    swap_examples: int,
    data_dir: str | None,
) -> Study:
    """Measures the attention of all layers, and draws it.

    Args:
      run: the model.
      layers: the inputs of each layer's attention.
      counts: numbers of landmarks, in ascending order.
      swap_examples, data_dir: as for `write_study`.
    """
    swaps = None
    if swap_examples and swap.has_exact_attention(run):
        print("exchanging the attention of layers…", flush=True)
        swaps = swap.measure_swaps(run, counts, swap_examples, data_dir)
    pictured_count = _choose_pictured_count(own_landmarks(run.config), counts)
    with jax.enable_x64(True):
        tables = measure_all(layers, counts)
        print("drawing the figures…", flush=True)
        summary = diagnosis.summarize(tables["causes"])
        figures = {
            "landmarks": draw_errors(tables["landmarks"], "num_landmarks"),
            "causes": draw_errors(tables["causes"], "num_landmarks"),
            "limits": diagnosis.draw_limits(summary),
            "iterations": draw_errors(tables["iterations"], "num_pinv_iters"),
            "spectrum": draw_spectrum(tables["spectrum"]),
            **draw_matrices(layers, counts, pictured_count),
        }
    if swaps is not None:
        tables["swaps"] = swaps.table
    return Study(
        about=_about(run, len(layers), num_sequences=len(layers[0].mask)),
        tables=tables,
        summary=summary,
        figures=figures,
        pictured_count=pictured_count,
        swaps=swaps,
    )


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


def _about(run: TrainedRun, num_layers: int, num_sequences: int) -> str:
    """Two items of a list: the run, and what of it was measured."""
    step = (run.result or {}).get("best_step", "?")  # it may still be in training
    return (
        f"- Run: {run.config.task.name} with {run.config.attention}, seed "
        f"{run.config.train.seed}, best weights of step {step}\n"
        f"- Inputs: queries, keys and values of {num_layers} layers for the "
        f"{num_sequences} longest sequences of validation, in the pictures the "
        "first\n"
    )


def own_landmarks(config: Config) -> int:
    """Returns a run's number of landmarks: of several the largest, 0 if it has none."""
    return max(options.get("num_landmarks", 0) for _, options in config.attentions())


def choose_landmarks(
    landmarks: Sequence[int] | None, run_landmarks: int, max_length: int
) -> list[int]:
    """Returns the numbers of landmarks to measure, in ascending order.

    Args:
      landmarks: those that the user has named; None takes `default_landmarks`.
      run_landmarks: the run's number of landmarks; 0 if it has none.
      max_length: the number of tokens of the longest sequence.

    Raises:
      ConfigError: if there are as many landmarks as tokens, or the sequences are too
        short for the default numbers.
    """
    counts = sorted(landmarks or default_landmarks(run_landmarks, max_length))
    if not counts:
        raise ConfigError(
            f"the longest sequence has {max_length} tokens, too few for 4 landmarks; "
            "take a run with longer sequences, or give smaller --landmarks"
        )
    if counts[-1] >= max_length:
        raise ConfigError(
            f"--landmarks={counts[-1]} is exact attention here: the longest sequence "
            f"has {max_length} tokens; give smaller numbers"
        )
    return counts


def default_landmarks(run_landmarks: int, max_length: int) -> set[int]:
    """Returns 4, 8, …, 512 and the run's number, as far as they are below `max_length`.

    Args:
      run_landmarks: the run's number of landmarks; 0 if it has none.
      max_length: the number of tokens of the longest sequence.
    """
    counts = {2**k for k in range(2, 10)}
    counts.add(run_landmarks)
    return {count for count in counts if 0 < count < max_length}


def _choose_pictured_count(run_landmarks: int, counts: Sequence[int]) -> int:
    """The number of landmarks in the pictures: the run's own, if it is measured."""
    if run_landmarks in counts:
        return run_landmarks
    limit = max(PICTURED_LANDMARKS, min(counts))
    return max(count for count in counts if count <= limit)


def measure_all(
    layers: Sequence[AttentionInputs], counts: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Measures errors by landmarks, iterations and causes, and the spectra of S.

    Args:
      layers: the inputs of each layer's attention.
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
    print("measuring causes…", flush=True)
    tables["causes"] = causes.measure_causes(layers, counts, num_draws=NUM_DRAWS)
    print("measuring spectra…", flush=True)
    tables["spectrum"] = measurements.measure_spectra(layers)
    return tables


def _landmark_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each choice of landmarks, no inverse, and the baselines, by their size."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        for name, label in LABELS.items():
            for seed in range(NUM_DRAWS if name == "random" else 1):
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
            for seed in range(NUM_DRAWS):
                settings.append(
                    {
                        "method": name,
                        "num_landmarks": count,
                        "attention": name,
                        "seed": seed,
                    }
                )
    return settings


def _iteration_settings(counts: Sequence[int]) -> list[dict[str, Any]]:
    """Each number of iterations, and LAPACK's inverse, by the number of landmarks."""
    settings: list[dict[str, Any]] = []
    for count in counts:
        size = {"method": f"{count} landmarks", "num_landmarks": count}
        settings.extend({**size, "num_pinv_iters": n} for n in ITERATIONS)
        settings.append({**size, "pinv": "exact"})
    return settings


def table_of_causes(summary: pd.DataFrame) -> list[str]:
    """Returns the lines of the table: a row for each layer, head and number."""
    rows = []
    for (layer, head, count), row in summary.iterrows():
        cells = [f"{layer}", f"{head}", f"{count}"]
        for column in columns.HEADINGS:
            cell = f"{row[column]:.2g}"
            spread = columns.spread_of(column)
            if spread in row:
                cell += f" (×{row[spread]:.2g})"
            cells.append(cell)
        rows.append([*cells, row[columns.LIMITED_BY]])
    header = ["layer", "head", "M", *columns.HEADINGS.values(), "limited by"]
    return markdown.make_table(header, rows)
