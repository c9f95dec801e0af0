"""Makes the folder of a report, whole or not at all, from folders of runs."""

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nystromformer.config import ConfigError
from nystromformer.experiments.figures import save_figure
from nystromformer.experiments.page import made_here
from nystromformer.experiments.report.document import texts
from nystromformer.experiments.report.frame import make_frame
from nystromformer.experiments.report.plots import figures
from nystromformer.experiments.report.runs import Run, read_runs

FILES = {"report.html", "report.md", "table.tex", "accuracy.csv", "runs.csv", "figures"}
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
    runs, warnings = read_runs(folders)
    if not runs:
        raise ConfigError(warnings[0])
    check_output(out, runs)
    frame, left_out = make_frame(runs)
    warnings += left_out
    if unused := remarks.keys() - set(frame["task"]):
        raise ConfigError(f"--remark={min(unused)}=…: there is no run of {min(unused)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
        new = Path(folder) / "new"
        (new / "figures").mkdir(parents=True)
        drawn: dict[str, dict[str, Path]] = {}
        for task, of in frame.groupby("task", sort=False):
            drawn[task] = {}
            for name, figure in figures(of).items():
                stem = re.sub(r"[^\w-]", "_", f"{task}_{name}")
                _, svg = save_figure(figure, new / "figures" / stem)
                drawn[task][f"{task}: {name.replace('_', ' ')}"] = svg
        for name, text in texts(frame, drawn, remarks, warnings).items():
            (new / name).write_text(text, encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        new.rename(out)
    done = f"{sum(frame['finished'])} of {len(frame)} runs finished"
    told = [f"warning: {warning}" for warning in warnings]
    return [*told, f"{done}; see {out / 'report.html'}"]


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
    if not made_here(folder, "report.md", FIRST_LINES):
        return
    page = (folder / "report.md").read_text("utf-8", "replace")
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if str(name) not in FILES and f"]({name.with_suffix('.svg')})" not in page:
            raise ConfigError(
                f"--out={folder} holds {name}, which is not part of a report; name "
                "another folder"
            )
