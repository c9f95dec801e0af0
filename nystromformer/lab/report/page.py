"""What a report says, as one page that needs nothing else, and as Markdown."""

import base64
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from nystromformer.lab.report.points import Point
from nystromformer.lab.report.published import SOURCES
from nystromformer.lab.report.runs import Run
from nystromformer.lab.report.tables import (
    NOTHING,
    Table,
    accuracy_table,
    cost_table,
    details,
    marks,
    plain,
)

NOTES = (
    "Test accuracy in per cent: the mean and sample standard deviation over seeds, and "
    "the number of seeds in brackets.",
    f"{NOTHING}: not measured. Unfinished runs do not count; the brackets say how far "
    "they are.",
    "At a floor: a run within two standard deviations of a floor, as one test set of "
    "its size gives them, or below all floors.",
    "Published: measured by others, under the settings of their papers, and repeated "
    "beside every variant of the attention. Ours compare where the settings below say "
    "paper preset and nothing else.",
    *(f"[{n}] {name}: {what}." for n, (name, what) in enumerate(SOURCES.items(), 1)),
)
COSTS = (
    "Examples per second: of training, without compiling and validation. Compiled: "
    "arguments, the data among them, and temporaries of the compiled training step. "
    "Peak: the most that the device had in use."
)
FIGURES = (
    "Bars and bands: a standard deviation over seeds. Curves: thin lines are seeds, "
    "thick ones the mean of those that have begun, as far as all of them have come."
)


@dataclasses.dataclass(frozen=True)
class Section:
    """One task: its costs, and figure title -> SVG file."""

    task: str
    costs: Table
    figures: dict[str, Path]


@dataclasses.dataclass(frozen=True)
class Report:
    """All that the page shows, in its order."""

    summary: list[str]
    accuracy: Table
    notes: list[str]
    sections: list[Section]
    runs: list[dict[str, Any]]

    @classmethod
    def of(
        cls,
        points: list[Point],
        figures: dict[str, dict[str, Path]],
        remarks: Mapping[str, str] = {},
    ) -> "Report":
        """The report of these points.

        Args:
          points: what was measured.
          figures: task -> title -> SVG file.
          remarks: task -> what its cells have to be read with.
        """
        runs = [run for point in points for run in point.runs]
        sections = [
            Section(task, cost_table([p for p in points if p.task == task]), drawn)
            for task, drawn in figures.items()
        ]
        table = accuracy_table(points, remarks)
        letters = marks(remarks)
        notes = [f"[{letters[task]}] {text}" for task, text in remarks.items()]
        rows = [details(run) for run in runs]
        return cls(_summary(runs), table, [*NOTES, *notes], sections, rows)

    def html(self) -> str:
        """One page; style and figures lie in it, and every text is escaped."""
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )
        environment.filters["data_uri"] = _data_uri
        page = environment.get_template("page.html")
        return page.render(report=self, costs=COSTS, figures=FIGURES, nothing=NOTHING)

    def markdown(self) -> str:
        """The tables and figures; single runs are left to runs.csv."""
        lines = [
            "# Report",
            *self.summary,
            "## Test accuracy",
            self.accuracy.markdown(),
        ]
        lines += ["\n".join(f"- {plain(note)}" for note in self.notes)]
        for section in self.sections:
            lines += [f"## {section.task}", section.costs.markdown()]
            lines += [COSTS, FIGURES]
            lines += [
                f"![{title}]({path.parent.name}/{path.name})"
                for title, path in section.figures.items()
            ]
        lines += ["Each run's command, commit, versions and data hashes: runs.csv."]
        return "\n\n".join(line.strip() for line in lines) + "\n"


def _summary(runs: list[Run]) -> list[str]:
    """How many runs, where they were made, and why some failed."""
    results = [run.result for run in runs if run.result]
    lines = [f"{len(results)} of {len(runs)} runs finished."]
    for key, word in (("commit", "Commit"), ("device", "Device")):
        found = dict.fromkeys(str(result.get(key) or NOTHING) for result in results)
        if found:
            lines.append(f"{word}: {'; '.join(found)}.")
    return lines + [f"{run.name} failed: {run.failure}" for run in runs if run.failure]


def _data_uri(path: Path) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f"data:image/svg+xml;base64,{content}"
