"""The files of a report: a self-contained page, Markdown, a LaTeX table and CSV."""

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from nystromformer.experiments import markdown
from nystromformer.experiments.report.frame import Frame
from nystromformer.experiments.report.published import SOURCES
from nystromformer.experiments.report.scores import (
    NOTHING,
    cost_table,
    details,
    marks,
    paired_table,
    score_rows,
    score_table,
    shared,
)

SEEDS = "Mean ± sample standard deviation over seeds; in brackets the number of seeds."
NOTES = {  # by what they explain
    NOTHING: f"{NOTHING}: not measured. Unfinished runs do not count; the brackets say "
    "how far they are.",
    "floor": "Floor: what a fixed rule reaches on the same examples. At a floor: a run "
    "within two standard deviations of one, or no better than any.",
    "exact for": "Exact for p %: share of test examples with no more tokens than "
    "landmarks. There nystrom is softmax attention.",
}
PUBLISHED = (
    "Published: measured by others. Shown beside runs of the presets paper and "
    "as_published only, whatever their number of landmarks."
)
PAIRS = "Mean ± sd of the differences seed by seed; in brackets the number of seeds."
COSTS = (
    "Training, examples/s: without compilation and validation. Compiled: memory of the "
    "training step's arguments (which include the data) and temporaries. Peak: the "
    "most memory that the device had in use.",
    "Bars and bands: the standard deviation over several seeds; of one seed, for test "
    "rates, the binomial one over the test examples. Curves: thin lines are seeds, "
    "thick lines their mean, up to the last step that all of them have reached.",
)


class Section(NamedTuple):
    """A titled table, the settings that all rows share, notes and figures."""

    title: str
    shared: list[str]
    table: Frame
    notes: Sequence[str]
    figures: Mapping[str, Path] = {}


def texts(
    frame: Frame,
    figures: Mapping[str, Mapping[str, Path]],
    remarks: Mapping[str, str] = {},
    warnings: Sequence[str] = (),
) -> dict[str, str]:
    """The files of a report, by name.

    Args:
      frame: as `make_frame` gives it.
      figures: task -> title -> SVG file.
      remarks: task -> what its cells have to be read with.
      warnings: what was left out.
    """
    metrics = list(dict.fromkeys(frame["metric"]))
    words = "Test " + " and ".join(metrics).replace("_", " ")
    table, letters = score_table(frame, remarks), marks(remarks)
    cells = table.to_csv()
    notes = [SEEDS, *(note for word, note in NOTES.items() if word in cells)]
    if any("published" in column for column in table):
        sources = enumerate(SOURCES.items(), 1)
        cells = " ".join(map(str, table.to_numpy().ravel()))
        cited = [f"[{n}] {x}: {of}." for n, (x, of) in sources if f"[{n}]" in cells]
        notes += [PUBLISHED, *cited]
    notes += [f"{letters[task].strip()} {text}" for task, text in remarks.items()]
    sections = [Section(words, shared(frame), table, notes)]
    if len(pairs := paired_table(frame)):
        sections.append(Section("Paired differences", [], pairs, [PAIRS]))
    for task, drawn in figures.items():
        of = frame[frame["task"] == task]
        name = f"{task}: cost of training"
        sections.append(Section(name, shared(of), cost_table(of), COSTS, drawn))
    rows = [details(row, metrics) for _, row in frame.iterrows()]
    told = {
        "title": f"Report: {words.lower()} on {', '.join(figures)}",
        "summary": _summary(frame, warnings),
        "sections": sections,
        "runs": rows,
        "nothing": NOTHING,
    }
    return {
        "report.html": _render("page.html", told),
        "report.md": _render("page.md", told),
        "table.tex": _latex(
            sections[0]._replace(table=score_table(frame, remarks, brief=True))
        ),
        "accuracy.csv": to_csv(score_rows(frame, remarks)),
        "runs.csv": to_csv(rows),
    }


def _render(template: str, told: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "base64": lambda path: base64.b64encode(path.read_bytes()).decode(),
        "text": markdown.escape,
        "table": lambda x: "\n".join(markdown.table(list(x), x.to_numpy())),
    }
    return environment.get_template(template).render(told)


def _latex(scores: Section) -> str:
    """The table of scores for a paper; needs the package booktabs."""
    shared = f"All rows: {', '.join(scores.shared)}." if scores.shared else ""
    marks = [note for note in scores.notes if note.startswith("[")]
    caption = " ".join([f"{scores.title}.", shared, SEEDS, *marks])
    text = scores.table.to_latex(
        index=False,
        escape=True,
        column_format="l" + "r" * (scores.table.shape[1] - 1),
        caption=re.sub(r"([&%$#_{}])", r"\\\1", caption),
        label="tab:report",
        position="t",
    )
    return text.replace("±", r"$\pm$").replace(NOTHING, "--")


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV; missing cells are empty, and formulas are quoted as text."""
    table = pd.DataFrame(rows, dtype=object)
    formula = r"^(?=[=+\-@])(?![=+\-@][\d.]+$)"
    return table.replace(formula, "'", regex=True).to_csv(
        index=False, lineterminator="\n"
    )


def _summary(frame: Frame, warnings: Sequence[str]) -> list[str]:
    """The number of runs, their commits and devices, failures and warnings."""
    finished = frame[frame["finished"].astype(bool)]
    lines = [f"{len(finished)} of {len(frame)} runs finished."]
    for key in ("commit", "device"):
        if found := [str(x or NOTHING) for x in finished[key].unique()]:
            lines.append(f"{key.capitalize()}: {'; '.join(found)}.")
    failed = [run for run in frame["run"] if run.failure]
    lines += [f"{run.name} failed: {run.failure}" for run in failed]
    return lines + [f"Warning: {warning}" for warning in warnings]
