"""Writes tables and figures of finished and unfinished runs as one page.

    python scripts/report.py RUNS… --out=DIR

RUNS are workdirs of scripts/train.py, or folders that contain workdirs. DIR is a new
folder or an earlier report; it gets report.html, report.md, LaTeX, CSV and figures.
"""

from pathlib import Path

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.report.build import build

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)


def main(folders: list[str]) -> None:
    paths = [Path(folder).expanduser() for folder in folders]
    print(build(paths, Path(str(_OUT.value)).expanduser()))


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
