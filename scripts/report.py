"""Writes tables and figures of finished and unfinished runs as one page.

    python scripts/report.py RUNS… --out=DIR [--by=attention.num_landmarks]

RUNS are workdirs of scripts/train.py, or folders that contain workdirs. DIR is a new
folder or an earlier report; it gets report.html, report.md, LaTeX, CSV and figures.
--by names the settings that colours tell apart in the figures of scores by cost.
"""

from pathlib import Path

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.report.build import build

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_BY = flags.DEFINE_list(
    "by", ["attention"], "attention, or keys of the config: a colour for each value"
)


def main(folders: list[str]) -> None:
    """Writes the report, and prints how many runs are finished.

    Args:
      folders: workdirs, or folders that contain workdirs.
    """
    paths = [Path(folder).expanduser() for folder in folders]
    out = Path(str(_OUT.value)).expanduser()
    print(build(paths, out, group_by=_BY.value))


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
