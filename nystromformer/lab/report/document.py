"""What a report says: one page that needs nothing else, Markdown, and LaTeX."""

import base64
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from nystromformer.lab import markdown
from nystromformer.lab.report.frame import Frame
from nystromformer.lab.report.published import SOURCES
from nystromformer.lab.report.scores import (
    NOTHING,
    cost_table,
    details,
    marks,
    paired_table,
    score_table,
    shared,
)

NOTES = (
    "Mean ± sample standard deviation over seeds; in brackets the number of seeds.",
    f"{NOTHING}: not measured. Unfinished runs do not count; the brackets say how far "
    "they are.",
    "At a floor: a run within two standard deviations of a floor, as one test set of "
    "its size gives them, or no better than any floor.",
    "Exact for p %: the share of test examples with no more tokens than landmarks, for "
    "which the method is exact softmax attention by construction.",
)
PUBLISHED = (
    "Published: measured by others; beside runs of the paper preset only, whatever "
    "their number of landmarks."
)
PAIRS = "Differences seed by seed; in brackets the number of seeds."
COSTS = (
    "Training, examples/s: without compiling and validation. Compiled: arguments, the "
    "data among them, and temporaries of the compiled training step. Peak: the most "
    "that the device had in use.",
    "Bars and bands: a standard deviation over seeds. Curves: thin lines are seeds, "
    "thick ones the mean of those that have begun, as far as all of them have come.",
)


@dataclasses.dataclass(frozen=True)
class Section:
    """A table under a title, what all its rows share, notes, and figures by title."""

    title: str
    shared: list[str]
    table: Frame
    notes: Sequence[str]
    figures: Mapping[str, Path] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Report:
    """All that the page shows, in its order."""

    title: str
    summary: list[str]
    sections: list[Section]
    runs: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        frame: Frame,
        figures: Mapping[str, Mapping[str, Path]],
        remarks: Mapping[str, str] = {},
        warnings: Sequence[str] = (),
    ) -> "Report":
        """The report of these runs.

        Args:
          frame: as `make_frame` gives it.
          figures: task -> title -> SVG file.
          remarks: task -> what its cells have to be read with.
          warnings: what was left out.
        """
        metrics = list(dict.fromkeys(frame["metric"]))
        words = "Test " + " and ".join(metrics).replace("_", " ")
        table, letters = score_table(frame, remarks), marks(remarks)
        notes = list(NOTES)
        if any("published" in column for column in table):
            sources = enumerate(SOURCES.items(), 1)
            notes += [
                PUBLISHED,
                *(f"[{n}] {name}: {what}." for n, (name, what) in sources),
            ]
        notes += [f"{letters[task].strip()} {text}" for task, text in remarks.items()]
        sections = [Section(words, shared(frame), table, notes)]
        if len(pairs := paired_table(frame)):
            sections.append(Section("Paired differences", [], pairs, [PAIRS]))
        for task, drawn in figures.items():
            of = frame[frame["task"] == task]
            name = f"{task}: cost of training"
            sections.append(Section(name, shared(of), cost_table(of), COSTS, drawn))
        title = f"Report: {words.lower()} on {', '.join(figures)}"
        rows = [details(row, metrics) for _, row in frame.iterrows()]
        return cls(title, _summary(frame, warnings), sections, rows)

    def html(self) -> str:
        """One page; style and figures lie in it, and every text is escaped."""
        return self._render("page.html", autoescape=True)

    def markdown(self) -> str:
        """The tables and figures; single runs are left to runs.csv."""
        return self._render("page.md", autoescape=False)

    def _render(self, template: str, *, autoescape: bool) -> str:
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent),
            autoescape=autoescape,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters |= {
            "data_uri": _data_uri,
            "text": markdown.escape,
            "table": lambda x: "\n".join(markdown.table(list(x), x.to_numpy())),
        }
        page = environment.get_template(template)
        return page.render(nothing=NOTHING, **vars(self))

    def latex(self) -> str:
        """The table of scores for a paper; needs the package booktabs."""
        first = self.sections[0]
        caption = f"{first.title}. {', '.join(first.shared)}. {NOTES[0]}"
        text = first.table.to_latex(
            index=False,
            escape=True,
            column_format="l" + "r" * (first.table.shape[1] - 1),
            caption=re.sub(r"([&%$#_{}])", r"\\\1", caption),
            label="tab:report",
            position="t",
        )
        return text.replace("±", r"$\pm$").replace(NOTHING, "--")


def _summary(frame: Frame, warnings: Sequence[str]) -> list[str]:
    """How many runs, where they were made, and why some failed."""
    finished = frame[frame["finished"].astype(bool)]
    lines = [f"{len(finished)} of {len(frame)} runs finished."]
    for key in ("commit", "device"):
        if found := [str(x or NOTHING) for x in finished[key].unique()]:
            lines.append(f"{key.capitalize()}: {'; '.join(found)}.")
    failed = [run for run in frame["run"] if run.failure]
    lines += [f"{run.name} failed: {run.failure}" for run in failed]
    return lines + [f"Warning: {warning}" for warning in warnings]


def _data_uri(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/svg+xml;base64,{content}"
