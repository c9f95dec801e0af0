"""From folders of runs to the folder of a report."""

from collections.abc import Iterable
from pathlib import Path

from scripts.figures import save_figure
from scripts.reporting.output import (
    ACCURACY,
    FIGURES,
    PAGE,
    RUNS,
    TEXT,
    check_output,
    replacing,
)
from scripts.reporting.page import Report
from scripts.reporting.plots import figures
from scripts.reporting.points import Point, group
from scripts.reporting.runs import read_runs
from scripts.reporting.tables import accuracy_rows, to_csv


def build(folders: Iterable[Path], out: Path) -> str:
    """Reads the runs in and below `folders` and writes the report to `out`.

    Returns a line that says what was done.

    Raises:
      ConfigError: runs that cannot be read or compared, or an `out` that is taken or
        cannot be written.
    """
    out = out.expanduser().resolve()
    runs = read_runs(folders)
    check_output(out, runs)
    points = group(runs)
    with replacing(out) as folder:
        _write(points, folder)
    finished = sum(len(point.finished) for point in points)
    return f"{finished} of {len(runs)} runs finished; see {out / PAGE}"


def _write(points: list[Point], folder: Path) -> None:
    (folder / FIGURES).mkdir()
    drawn: dict[str, dict[str, Path]] = {}
    for task in dict.fromkeys(point.task for point in points):
        drawn[task] = {}
        for name, figure in figures([p for p in points if p.task == task]).items():
            _, svg = save_figure(figure, folder / FIGURES / f"{task}_{name}")
            drawn[task][f"{task}: {name.replace('_', ' ')}"] = svg
    report = Report.of(points, drawn)
    texts = {
        PAGE: report.html(),
        TEXT: report.markdown(),
        ACCURACY: to_csv(accuracy_rows(points)),
        RUNS: to_csv(report.runs),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
