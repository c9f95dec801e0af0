"""The page of a study: its figures, what they show, and the table of causes."""

from collections.abc import Sequence
from pathlib import Path

import jax
import pandas as pd
from matplotlib.figure import Figure

from nystromformer.experiments import markdown, provenance
from nystromformer.experiments.approximation import columns, diagnosis, swap_page
from nystromformer.experiments.approximation.pictures import (
    MAX_PANELS,
    draw_errors,
    draw_matrices,
    draw_spectrum,
    draw_swaps,
)
from nystromformer.experiments.approximation.study import (
    NUM_DRAWS,
    Study,
    check_choices,
    choose_landmark_counts,
    measure_study,
    own_landmarks,
    record_longest,
)
from nystromformer.experiments.approximation.swap import has_exact_attention
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.trained_run import TrainedRun

OWN_FILE = "landmarks.csv"  # every study has it
PICTURED_LANDMARKS = 64  # at most, where the run's own number is not measured
# By the names of the figures, in the order of the page.
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
for it, or the exact inverse, or none; k-means landmarks have six. The standard Nyström
method samples rows and columns of S after the softmax, and needs all of S for it;
"iterated" inverts its sample by six iterations, which regularise. causes.csv has all
heads and draws, the table below their medians.""",
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
# Instead of what an exchange costs, of a run with any other attention.
LEFT_OUT = """\
What an exchange costs is left out: it is measured on a run with exact attention \
(softmax) in every layer, and this one has {attentions}. Train one with :softmax in \
--config, or name its --workdir.\
"""
TABLE = """\
Medians over sequences and draws. × is the largest error of {num_draws} draws over the
smallest. Z is the inverse of six iterations; AZA = A for every generalised inverse.
"Limited by" names the first of rank, landmarks and inverse that is over {tolerance}.
"""


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
      swap_examples, data_dir: as for `measure_study`.

    Raises:
      ConfigError: as in `choose_landmark_counts` and `check_choices`, and if the folder
        has other files.
    """
    markdown.check_folder(out, OWN_FILE)
    if swap_examples and not has_exact_attention(run):
        print(_describe_left_out(run), flush=True)
    layers = record_longest(run, examples, data_dir)
    max_length = int(max(inputs.mask.sum(1).max() for inputs in layers))
    counts = choose_landmark_counts(landmarks, own_landmarks(run.config), max_length)
    check_choices(counts, layers[0].key.shape[1])

    made_by = provenance.collect()
    out.mkdir(parents=True, exist_ok=True)
    study = measure_study(
        run, layers, counts, swap_examples=swap_examples, data_dir=data_dir
    )
    for name, rows in study.tables.items():
        rows.to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    print("drawing the figures…", flush=True)
    figures = draw_study(study)
    for name, figure in figures.items():
        save_figure(figure, out / name)
    page = markdown.make_page("Approximation", made_by, describe_study(study))
    (out / "README.md").write_text(page, "utf-8")
    print(f"{out}/README.md has {len(figures)} figures")


def draw_study(study: Study) -> dict[str, Figure]:
    """Draws the figures of a study by their names, those of CAPTIONS and "swaps"."""
    tables = study.tables
    figures = {
        "landmarks": draw_errors(tables["landmarks"], "num_landmarks"),
        "causes": draw_errors(tables["causes"], "num_landmarks"),
        "limits": diagnosis.draw_limits(study.summary),
        "iterations": draw_errors(tables["iterations"], "num_pinv_iters"),
        "spectrum": draw_spectrum(tables["spectrum"]),
    }
    with jax.enable_x64(True):
        figures |= draw_matrices(study.layers, study.counts, pictured_count(study))
    if study.swaps is not None:
        figures["swaps"] = draw_swaps(study.swaps)
    return figures


def pictured_count(study: Study) -> int:
    """Returns the number of landmarks in the pictures of one number.

    It is the run's own, if that was measured.
    """
    run_landmarks = own_landmarks(study.run.config)
    if run_landmarks in study.counts:
        return run_landmarks
    limit = max(PICTURED_LANDMARKS, min(study.counts))
    return max(count for count in study.counts if count <= limit)


def describe_study(study: Study) -> list[str]:
    """Returns the lines of the page behind its head."""
    lines = _describe_run(study)
    if study.swaps is not None:
        lines.append("## What an exchange costs\n")
        lines.extend(swap_page.describe_swaps(study.swaps))
        lines.append("![The change by landmarks and layers](swaps.png)\n")
    elif not has_exact_attention(study.run):
        lines.append(f"{_describe_left_out(study.run)}\n")
    numbers = {
        "count": pictured_count(study),
        "max_panels": MAX_PANELS,
        "num_draws": NUM_DRAWS,
        "tolerance": diagnosis.SMALL_ERROR,
    }
    for name, caption in CAPTIONS.items():
        picture = f"![{name}]({name}.png)"
        text = caption.format(**numbers)
        lines.append(f"## {name.capitalize()}\n\n{picture}\n\n{text}\n")
    lines.append(f"## Table of causes\n\n{TABLE.format(**numbers)}")
    lines.extend(table_of_causes(study.summary))
    return lines


def _describe_left_out(run: TrainedRun) -> str:
    """Says why it is not measured what an exchange costs."""
    names = sorted({name for name, _ in run.config.attentions()})
    return LEFT_OUT.format(attentions=" and ".join(names))


def _describe_run(study: Study) -> list[str]:
    """Two items of a list: the run, and what of it was measured."""
    run = study.run
    step = (run.result or {}).get("best_step", "?")  # it may still be in training
    return [
        f"- Run: {run.config.task.name} with {run.config.attention}, seed "
        f"{run.config.train.seed}, best weights of step {step}",
        f"- Inputs: queries, keys and values of {len(study.layers)} layers for the "
        f"{len(study.layers[0].mask)} longest sequences of validation, in the pictures "
        "the first\n",
    ]


def table_of_causes(summary: pd.DataFrame) -> list[str]:
    """Returns the lines of the table: a row for each layer, head and number."""
    rows = []
    for (layer, head, count), row in summary.iterrows():
        cells = [f"{layer}", f"{head}", f"{count}"]
        for column in columns.TABLE_COLUMNS:
            cell = f"{row[column]:.2g}"
            spread = columns.spread_of(column)
            if spread in row:
                cell += f" (×{row[spread]:.2g})"
            cells.append(cell)
        rows.append([*cells, row[columns.LIMITED_BY]])
    headings = map(columns.heading_of, columns.TABLE_COLUMNS)
    header = ["layer", "head", "M", *headings, "limited by"]
    return markdown.make_table(header, rows)
