"""Writes tables and figures of finished and unfinished runs as one page.

    python scripts/report.py RUNS… --out=DIR [--remark="image=its pixels were JPEG" …]

RUNS are workdirs of scripts/train.py, or folders that contain workdirs. DIR receives
report.html, report.md, a LaTeX table, CSV files and figures. A remark appears below the
table, and every cell of its task points to it.
"""

import sys
from pathlib import Path

from absl import flags

from nystromformer.config import ConfigError
from nystromformer.experiments import cli
from nystromformer.experiments.report.build import build

OUT = cli.define_folder("out", "folder to write; replaces an earlier report", True)
REMARK = flags.DEFINE_multi_string("remark", [], "TASK=TEXT")


def main(folders: list[str]) -> None:
    remarks = {}
    for remark in REMARK.value:
        task, _, text = remark.partition("=")
        if not text.strip() or task in remarks:
            raise ConfigError(f"--remark={remark}: give TASK=TEXT, once for each task")
        remarks[task] = text
    *warnings, done = build([Path(x) for x in folders], Path(str(OUT.value)), remarks)
    for warning in warnings:
        print(warning, file=sys.stderr)
    print(done)


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
