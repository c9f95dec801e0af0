"""From folders of runs to the folder of a report."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.lab.figures import save_figure
from nystromformer.lab.report.output import (
    ACCURACY,
    FIGURES,
    PAGE,
    RUNS,
    TEXT,
    check_output,
    replacing,
)
from nystromformer.lab.report.page import Report
from nystromformer.lab.report.plots import figures
from nystromformer.lab.report.points import Point, group
from nystromformer.lab.report.runs import read_runs
from nystromformer.lab.report.tables import accuracy_rows, to_csv


def build(folders: Iterable[Path], out: Path, remarks: Mapping[str, str] = {}) -> str:
    """Reads the runs in and below `folders` and writes the report to `out`.

    `remarks` is task -> what each of its cells has to be read with. Returns a line
    that says what was done.

    Raises:
      ConfigError: runs that cannot be read or compared, a remark on a task that has
        none, or an `out` that is taken or cannot be written.
    """
    out = out.expanduser().resolve()
    runs = read_runs(folders)
    check_output(out, runs)
    points = group(runs)
    if unused := remarks.keys() - {point.task for point in points}:
        raise ConfigError(f"--remark={min(unused)}=…: there is no run of {min(unused)}")
    with replacing(out) as folder:
        _write(points, remarks, folder)
    finished = sum(len(point.finished) for point in points)
    return f"{finished} of {len(runs)} runs finished; see {out / PAGE}"


def _write(points: list[Point], remarks: Mapping[str, str], folder: Path) -> None:
    (folder / FIGURES).mkdir()
    drawn: dict[str, dict[str, Path]] = {}
    for task in dict.fromkeys(point.task for point in points):
        drawn[task] = {}
        for name, figure in figures([p for p in points if p.task == task]).items():
            _, svg = save_figure(figure, folder / FIGURES / f"{task}_{name}")
            drawn[task][f"{task}: {name.replace('_', ' ')}"] = svg
    report = Report.of(points, drawn, remarks)
    texts = {
        PAGE: report.html(),
        TEXT: report.markdown(),
        ACCURACY: to_csv(accuracy_rows(points, remarks)),
        RUNS: to_csv(report.runs),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
