"""The page of a study: its captions, its figures, and the table of causes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nystromformer.experiments import markdown
from nystromformer.experiments.approximation import causes
from nystromformer.experiments.approximation.diagnosis import TOLERANCE
from nystromformer.experiments.approximation.drawings import MAX_PANELS, Frame
from nystromformer.experiments.plotting import save_figure

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
# Heading -> the column of `summarize`; those of random methods also have a spread.
COLUMNS = {
    "best rank": causes.BEST_RANK,
    "best middle matrix": causes.BEST_MIDDLE,
    "Nyström": causes.NYSTROM,
    "exact inverse": causes.EXACT_INVERSE,
    "no inverse": causes.NO_INVERSE,
    "random landmarks": causes.RANDOM_LANDMARKS,
    "standard Nyström": causes.STANDARD,
    "iterated": causes.STANDARD_ITERATED,
    "Performer": causes.PERFORMER,
    "‖Z − A⁺‖ / ‖A⁺‖": "inverse_error",
    "‖AZA − A‖ / ‖A‖": "inverse_residual",
}


def write_page(
    out: Path,
    *,
    made_by: Mapping[str, Any],
    about: str,
    figures: Mapping[str, Figure],
    summary: Frame,
    pictured_count: int,
    num_draws: int,
) -> None:
    """Writes README.md and its figures.

    Args:
      out: the folder.
      made_by: command, commit, device and versions.
      about: the run and its inputs, in Markdown.
      figures: by their names in CAPTIONS.
      summary: the table of causes, as `summarize` makes it.
      pictured_count: the number of landmarks in the pictures of one number.
      num_draws: draws of each random method.
    """
    numbers = {
        "count": pictured_count,
        "max_panels": MAX_PANELS,
        "num_draws": num_draws,
        "tolerance": TOLERANCE,
    }
    lines = [about]
    for name, figure in figures.items():
        save_figure(figure, out / name)
        caption = CAPTIONS[name].format(**numbers)
        lines.append(f"## {name.capitalize()}\n\n![{name}]({name}.png)\n\n{caption}\n")
    lines.append(f"## Table of causes\n\n{TABLE.format(**numbers)}")
    lines.extend(table_of_causes(summary))
    (out / "README.md").write_text(markdown.make_page("Approximation", made_by, lines))


def table_of_causes(summary: Frame) -> list[str]:
    """Returns the lines of the table: a row for each layer, head and number."""
    rows = []
    for (layer, head, count), row in summary.iterrows():
        cells = [f"{layer}", f"{head}", f"{count}"]
        for column in COLUMNS.values():
            cell = f"{row[column]:.2g}"
            spread = f"{column}{causes.SPREAD}"
            if spread in row:
                cell += f" (×{row[spread]:.2g})"
            cells.append(cell)
        rows.append([*cells, row["limited_by"]])
    header = ["layer", "head", "M", *COLUMNS, "limited by"]
    return markdown.make_table(header, rows)
