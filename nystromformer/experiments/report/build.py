"""Writes a report: a page, Markdown, a LaTeX table, CSV files and figures."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from nystromformer.experiments import markdown
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.report.figures import figures
from nystromformer.experiments.report.published import SOURCES
from nystromformer.experiments.report.runs import Frame, read_runs
from nystromformer.experiments.report.tables import (
    DASH,
    cost_table,
    paired_table,
    score_rows,
    score_table,
    shared,
)

SEEDS = "Mean ± sample standard deviation over seeds; in brackets the number of seeds."
NOTES = {  # by the words in a table that they explain
    DASH: f"{DASH}: not measured. Brackets say how far unfinished runs are.",
    "floor": "Floor: what a fixed rule reaches on the same examples. At a floor: a run "
    "within two standard deviations of one, or no better than any.",
    "exact for": "Exact for p %: share of test examples with no more tokens than "
    "landmarks. There nystrom is softmax attention.",
    "published": "Published: measured by others; beside runs of the presets paper and "
    "as_published, whatever their number of landmarks.",
    **{f"[{n}]": f"[{n}] {x}: {of}." for n, (x, of) in enumerate(SOURCES.items(), 1)},
}
PAIRS = (
    "Mean difference over the seeds that both have, ± half the paired t interval of "
    "95 %. Of one seed: ± two binomial standard deviations over the test examples, "
    "which say nothing of other seeds. Each comparison is judged alone. Of an "
    "attention with several rows, that with the most seeds is the reference."
)
COSTS = (
    "Training, examples/s: without compilation and validation. Compiled: memory of the "
    "training step's arguments (which include the data) and temporaries. Peak: the "
    "most memory that the device had in use.",
    "Bars and bands: the standard deviation over seeds; of one seed, for test rates, "
    "the binomial one over the test examples. Thick curves: the mean of the thin ones.",
)
PRIVATE = ["data", "settings", "named", "changed", "place", "order", "curves", "score"]
PRIVATE += ["score_sd", "finished", "objective", "floors", "other_floors", "sessions"]


def build(folders: Iterable[Path], out: Path) -> str:
    """Reads the runs in and below `folders`, writes the report to `out`, sums it up.

    Raises:
      ConfigError: no run there, or an `out` that holds something else than a report.
    """
    frame, doubles = read_runs(folders)
    runs = frame.drop(columns=PRIVATE, errors="ignore").round(4).convert_dtypes()
    runs = runs.astype(object).where(runs.notna(), None)
    rows = score_rows(frame)
    out = markdown.open_folder(out, "runs.csv")
    runs.to_csv(out / "runs.csv", index=False)  # the first file: what ours is known by
    rows.drop(columns=["place", "named"]).to_csv(out / "scores.csv", index=False)
    (out / "figures").mkdir(exist_ok=True)
    scores, common = score_table(rows), shared(frame)
    text = scores.to_csv()
    notes = [SEEDS, *(note for words, note in NOTES.items() if words in text)]
    section = {"title": "Test scores", "table": scores, "notes": notes}
    sections = [section | {"shared": common}]
    if len(pairs := paired_table(frame)):
        section = {"title": "Paired differences", "table": pairs, "notes": [PAIRS]}
        sections.append(section)
    for task, of in frame.groupby("task", sort=False):
        section = {"title": f"{task}: cost of training", "table": cost_table(of)}
        section |= {"notes": COSTS, "shared": shared(of), "figures": {}}
        for name, figure in figures(of).items():
            path = out / "figures" / f"{task}_{name}"
            _, svg = save_figure(figure, path)
            section["figures"][path.name.replace("_", " ")] = svg
        sections.append(section)
    done = f"{frame['finished'].sum()} of {len(frame)} runs finished"
    told = {
        "title": f"Report on {', '.join(frame['task'].unique())}",
        "summary": [f"{done}.", *(f"Left out, a double: {run}." for run in doubles)],
        "sections": sections,
        "runs": runs.to_dict("records"),
        "nothing": DASH,
    }
    for page in ("html", "md"):
        (out / f"report.{page}").write_text(_render(f"page.{page}", told), "utf-8")
    (out / "table.tex").write_text(latex(scores, common, notes), "utf-8")
    return f"{done}; see {out / 'report.html'}"


def latex(scores: Frame, common: Sequence[str], notes: Sequence[str]) -> str:
    """The table of scores for a paper; needs the package booktabs."""
    sources = [note for note in notes if note.startswith("[")]
    settings = f"All rows: {', '.join(common)}." if common else ""
    caption = " ".join(filter(None, ["Test scores.", settings, SEEDS, *sources]))
    brief = scores.replace(r" \((\d+(?: of \d+)?)(?:, .*)?\)$", r" (\1)", regex=True)
    text = brief.to_latex(
        index=False,
        escape=True,
        column_format="l" + "r" * (scores.shape[1] - 1),
        caption=escape_latex(caption),
        label="tab:report",
        position="t",
    )
    return text.replace("±", r"$\pm$").replace(DASH, "--")


def escape_latex(text: str) -> str:
    """Escapes each character that is special in LaTeX's text."""
    words = {"\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
    return re.sub(r"[&%$#_{}\\^~]", lambda x: words.get(x[0], f"\\{x[0]}"), text)


def _render(template: str, told: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "base64": lambda path: base64.b64encode(path.read_bytes()).decode(),
        "text": markdown.escape,
        "table": lambda x: "\n".join(markdown.table(list(x), x.to_numpy())),
    }
    return environment.get_template(template).render(told)
