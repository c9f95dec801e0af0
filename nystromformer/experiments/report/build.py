"""Writes a report: a page, Markdown, a LaTeX table, CSV files and figures."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from nystromformer.experiments import markdown
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.report import tables
from nystromformer.experiments.report.figures import draw_figures
from nystromformer.experiments.report.names import UNNAMED, group_names
from nystromformer.experiments.report.runs import Frame, read_runs

RUNS_FILE = "runs.csv"  # A folder that has it is a report.
# Columns of a run that runs.csv does not have: parts of config.json and metrics.jsonl,
# and what only the tables need.
NOT_WRITTEN = (
    "settings",
    "presets",
    "overrides",
    "has_overrides",
    "num_steps",
    "column",
    "row",
    "data",
    "preset",
    "group",
    "curves",
    "sessions",
)


class Section(NamedTuple):
    """A part of the page: a table, the keys of its notes in page.notes, its figures."""

    title: str
    table: Frame
    notes: list[str]
    figures: list[Path]


def build(
    folders: Iterable[Path],
    out: Path,
    group_by: Sequence[str] = ("attention",),
    compare_with: Sequence[str] = (),
) -> str:
    """Writes the report on all runs in and below some folders.

    Args:
      folders: workdirs, or folders of workdirs.
      out: the folder to write.
      group_by: `attention`, or keys of the config. Runs that are equal in all of them
        have one colour in the figures of scores by cost.
      compare_with: the attentions from which differences are shown, as in
        `tables.paired_table`.

    Returns:
      A sentence: how many runs are finished, and where the page is.

    Raises:
      ConfigError: if there is no run, no run has a setting of `group_by` or an
        attention of `compare_with`, or `out` holds something else than a report.
    """
    # `frame` has a row for each run and metric, `runs` a row for each run.
    frame = read_runs(folders)
    frame["group"] = group_names(frame, group_by)
    runs = frame.drop_duplicates("run")
    scores = tables.score_table(frame)
    pairs = tables.paired_table(frame, compare_with)
    markdown.check_folder(out, RUNS_FILE)
    out.mkdir(parents=True, exist_ok=True)

    # runs.csv comes first, since a folder that has it may be written again: a report
    # that fails after this line does not block the next one.
    table_of_runs = _write_runs(runs, out)
    _write_scores(frame, scores, out)
    sections = _make_sections(frame, scores, pairs, out)
    count = f"{runs['finished'].sum()} of {len(runs)} runs finished"
    _write_pages(frame, runs, table_of_runs, sections, count, out)
    return f"{count}; see {out / 'report.html'}"


def _write_runs(runs: Frame, out: Path) -> Frame:
    """Writes runs.csv and returns its table."""
    table = runs.drop(columns=list(NOT_WRITTEN), errors="ignore")
    # Otherwise a column of whole numbers is of floats if one is unknown.
    table = table.convert_dtypes()
    table = table.map(lambda value: _join(value) if isinstance(value, dict) else value)
    table.to_csv(out / RUNS_FILE, index=False)
    return table


def _join(values: Mapping[str, Any]) -> str:
    """A mapping in words, as in "majority class 0.12, root operator 0.25"."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _write_scores(frame: Frame, scores: Frame, out: Path) -> None:
    """Writes scores.csv and table.tex."""
    by_row = frame.groupby(["task", "metric", "label"], sort=False)["score"]
    by_row.agg(["mean", "std", "count"]).to_csv(out / "scores.csv")

    latex = scores.to_latex(
        index=False,
        escape=True,
        caption="Test scores: mean ± standard deviation over seeds (number of seeds).",
        label="tab:report",
    )
    (out / "table.tex").write_text(latex, "utf-8")


def _make_sections(
    frame: Frame, scores: Frame, pairs: Frame, out: Path
) -> list[Section]:
    """Makes the parts of the page, and draws their figures."""
    score_notes = ["scores"]
    if any("published" in column for column in scores):
        score_notes.append("published")
    sections = [Section("Test scores", scores, score_notes, [])]

    if len(pairs):
        sections.append(Section("Paired differences", pairs, ["pairs"], []))

    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    for task, task_frame in frame.groupby("task", sort=False):
        paths = []
        for name, figure in draw_figures(task_frame):
            _, path = save_figure(figure, folder / f"{task}_{name}")
            paths.append(path)
        costs = tables.cost_table(task_frame.drop_duplicates("run"))
        cost_notes = ["costs"]
        if tables.EXACT_BY_LENGTH in costs:
            cost_notes.append("exact")
        sections.append(Section(f"{task}: costs and curves", costs, cost_notes, paths))
    return sections


def _write_pages(
    frame: Frame,
    runs: Frame,
    table_of_runs: Frame,
    sections: list[Section],
    count: str,
    out: Path,
) -> None:
    """Writes report.html and report.md from the templates beside this file."""
    facts = [f"{name}={value}" for name, value in shared_facts(runs).items()]
    values = {
        "title": f"Report on {', '.join(frame['task'].unique())}",
        "summary": f"{count}. All of them: {', '.join(facts) or tables.DASH}.",
        "sections": sections,
        "runs": table_of_runs.astype(object).fillna(tables.DASH).to_dict("records"),
        "nothing": tables.DASH,
    }
    templates = _templates()
    for template, page in (("page.html", "report.html"), ("page.md", "report.md")):
        text = templates.get_template(template).render(values)
        (out / page).write_text(text, "utf-8")


def shared_facts(runs: Frame) -> dict[str, Any]:
    """Finds what all runs have in common.

    These are the preset and the overrides that are equal in all of them, and the device
    and the commit of those that are finished.
    """
    rows = []
    for _, run in runs.iterrows():
        rows.append({"preset": run["settings"]["preset"], **run["overrides"]})
    facts: Frame = pd.DataFrame(rows).drop(columns=list(UNNAMED), errors="ignore")
    is_shared = facts.map(str).nunique() == 1
    shared = facts.loc[0, is_shared].to_dict()

    for name in ("device", "commit"):
        values = runs.loc[runs["finished"], name].unique()
        if len(values) == 1:
            shared[name] = values[0]
    return shared


def _templates() -> jinja2.Environment:
    """The templates of the pages, with the filters that they use."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["base64"] = _base64
    templates.filters["text"] = markdown.escape
    templates.filters["table"] = _markdown_table
    return templates


def _base64(path: Path) -> str:
    """The content of a file, for a page that holds it."""
    return base64.b64encode(path.read_bytes()).decode()


def _markdown_table(table: Frame) -> str:
    return "\n".join(markdown.make_table(list(table), table.to_numpy()))
