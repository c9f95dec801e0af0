"""From folders of runs to the folder of a report, written whole or not at all."""

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nystromformer.config import ConfigError
from nystromformer.lab.figures import save_figure
from nystromformer.lab.page import made_here
from nystromformer.lab.report.document import Report
from nystromformer.lab.report.frame import Frame, make_frame
from nystromformer.lab.report.plots import figures
from nystromformer.lab.report.runs import Run, read_runs
from nystromformer.lab.report.scores import score_rows

PAGE, TEXT, FIGURES = "report.html", "report.md", "figures"
SCORES, RUNS, LATEX = "accuracy.csv", "runs.csv", "table.tex"
FIRST_LINES = r"# Report(: [^\n]*)?\n\n\d+ of \d+ runs finished\.\n"


def build(
    folders: Iterable[Path], out: Path, remarks: Mapping[str, str] = {}
) -> list[str]:
    """Reads the runs in and below `folders` and writes the report to `out`.

    `remarks` is task -> what each of its cells has to be read with. Returns what was
    done, after a warning about each run that is left out: what is damaged, foreign or
    doubled does not keep the others from being reported.

    Raises:
      ConfigError: no run that can be read, a remark on a task that has none, or an
        `out` that is taken.
      OSError: `out` cannot be written.
    """
    out = out.expanduser().resolve()
    runs, unread = read_runs(folders)
    if not runs:
        raise ConfigError(unread[0])
    check_output(out, runs)
    frame, doubles = make_frame(runs)
    if unused := remarks.keys() - set(frame["task"]):
        raise ConfigError(f"--remark={min(unused)}=…: there is no run of {min(unused)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        _write(frame, remarks, [*unread, *doubles], new := Path(folder) / "new")
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)
    done = f"{sum(frame['finished'])} of {len(frame)} runs finished; see {out / PAGE}"
    return [*(f"warning: {warning}" for warning in (*unread, *doubles)), done]


def _write(
    frame: Frame, remarks: Mapping[str, str], warnings: Sequence[str], folder: Path
) -> None:
    (folder / FIGURES).mkdir(parents=True)
    drawn: dict[str, dict[str, Path]] = {}
    for task, of in frame.groupby("task", sort=False):
        drawn[task] = {}
        for name, figure in figures(of).items():
            stem = re.sub(r"[^\w-]", "_", f"{task}_{name}")
            _, svg = save_figure(figure, folder / FIGURES / stem)
            drawn[task][f"{task}: {name.replace('_', ' ')}"] = svg
    report = Report.of(frame, drawn, remarks, warnings)
    texts = {
        PAGE: report.html(),
        TEXT: report.markdown(),
        LATEX: report.latex(),
        SCORES: to_csv(score_rows(frame, remarks)),
        RUNS: to_csv(report.runs),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a row; what is missing is empty. No text is a spreadsheet's formula."""

    def quoted(cell: Any) -> Any:
        formula = isinstance(cell, str) and re.match(r"[=+\-@](?![\d.]+$)", cell)
        return f"'{cell}" if formula else cell

    table = pd.DataFrame(rows, dtype=object).map(quoted)
    return table.to_csv(index=False, lineterminator="\n")


def check_output(folder: Path, runs: Sequence[Run]) -> None:
    """Whether a report may be written there: a new folder, or an earlier report.

    Raises:
      ConfigError: it lies in a run, is a file, or holds what is no part of a report.
    """
    for run in runs:
        if folder.is_relative_to(run.workdir):
            raise ConfigError(
                f"--out={folder} lies in the run {run.workdir}; name another folder"
            )
    if not made_here(folder, TEXT, FIRST_LINES):
        return
    linked = re.findall(
        r"\]\((figures/\S+)\.svg\)", (folder / TEXT).read_text("utf-8", "replace")
    )
    own = {f"{stem}.{kind}" for stem in linked for kind in ("svg", "png")}
    own |= {PAGE, TEXT, FIGURES, SCORES, RUNS, LATEX}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
    if foreign := sorted(found - own):
        raise ConfigError(
            f"--out={folder} holds {foreign[0]}, which is no part of a report; name "
            "another folder"
        )
