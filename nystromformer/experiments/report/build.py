"""Writes a report: a page, Markdown, a LaTeX table, CSV files and figures."""

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from nystromformer.experiments import provenance
from nystromformer.experiments.plotting import save_figure
from nystromformer.experiments.report import tables
from nystromformer.experiments.report.figures import figures
from nystromformer.experiments.report.runs import UNNAMED, Frame, read_runs

PRIVATE = ["settings", "presets", "overrides", "column", "data", "curves", "sessions"]
PAGES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=jinja2.select_autoescape(),
    trim_blocks=True,
    keep_trailing_newline=True,
)
PAGES.filters |= {
    "base64": lambda path: base64.b64encode(path.read_bytes()).decode(),
    "text": provenance.escape,
    "table": lambda x: "\n".join(provenance.table(list(x), x.to_numpy())),
}


def build(folders: Iterable[Path], out: Path) -> str:
    """Reads the runs in and below `folders`, writes the report to `out`, sums it up.

    ConfigError for no run there, or an `out` that holds something else than a report.
    """
    frame = read_runs(folders)
    out = provenance.open_folder(out, "runs.csv")
    runs = frame.drop_duplicates("run")
    done, shown = runs[runs["finished"]], runs.drop(columns=PRIVATE, errors="ignore")
    shown = shown.convert_dtypes()  # of whole numbers, some unknown
    shown.to_csv(out / "runs.csv", index=False)  # the first file: what ours is known by
    (out / "figures").mkdir(exist_ok=True)
    numbers = frame.groupby(["task", "metric", "label"], sort=False)["score"]
    numbers.agg(["mean", "std", "count"]).to_csv(out / "scores.csv")
    scores, pairs = tables.score_table(frame), tables.paired_table(frame)
    caption = "Test scores: mean ± standard deviation over seeds (number of seeds)."
    tex = scores.to_latex(index=False, escape=True, caption=caption, label="tab:report")
    (out / "table.tex").write_text(tex, "utf-8")
    cited = ["published"] * any("published" in name for name in scores)
    sections = [("Test scores", scores, ["scores", *cited], [])]
    if len(pairs):
        sections.append(("Paired differences", pairs, ["pairs"], []))
    for task, of in frame.groupby("task", sort=False):
        place = out / "figures"
        drawn = [save_figure(f, place / f"{task}_{x}")[1] for x, f in figures(of)]
        costs = tables.cost_table(of.drop_duplicates("run"))
        sections.append((f"{task}: costs and curves", costs, ["costs"], drawn))
    shared = [f"{name}={x}" for name, x in shared_facts(runs).items()]
    count = f"{len(done)} of {len(runs)} runs finished"
    told = {
        "title": f"Report on {', '.join(frame['task'].unique())}",
        "summary": f"{count}. All of them: {', '.join(shared) or tables.DASH}.",
        "sections": sections,
        "runs": shown.astype(object).fillna(tables.DASH).to_dict("records"),
        "nothing": tables.DASH,
    }
    for page in ("report.html", "report.md"):
        text = PAGES.get_template(page.replace("report", "page")).render(told)
        (out / page).write_text(text, "utf-8")
    return f"{count}; see {out / 'report.html'}"


def shared_facts(runs: Frame) -> dict[str, Any]:
    """What all runs have: the preset, overrides; of finished ones device and commit."""
    rows = [
        {"preset": run["settings"]["preset"], **run["overrides"]}
        for _, run in runs.iterrows()
    ]
    facts: Frame = pd.DataFrame(rows).drop(columns=list(UNNAMED), errors="ignore")
    shared = facts.loc[0, facts.map(str).nunique() == 1].to_dict()
    for name in ("device", "commit"):
        values = runs.loc[runs["finished"], name].unique()
        if len(values) == 1:
            shared[name] = values[0]
    return shared
