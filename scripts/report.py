"""Tables, figures and one page of what runs have found, with every number's command.

    python scripts/report.py RUNS… --out=DIR [--remark="image=its pixels were JPEG" …]

RUNS are workdirs of scripts/train.py, or folders with such somewhere below. A remark on
a task is printed below the table, and each of the task's cells points to it.
"""

import sys
from pathlib import Path

from absl import flags

from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.report.build import build

OUT = flags.DEFINE_string("out", None, "the folder; an earlier report is replaced")
REMARK = flags.DEFINE_multi_string("remark", [], "TASK=TEXT; repeat")
flags.mark_flag_as_required("out")


def main(folders: list[str]) -> None:
    if not OUT.value:
        raise ConfigError("--out is empty: name a folder")
    remarks = {}
    for remark in REMARK.value:
        task, _, text = remark.partition("=")
        if not text.strip() or task in remarks:
            raise ConfigError(f"--remark={remark} is not TASK=TEXT, once for a task")
        remarks[task] = text
    *warnings, done = build([Path(x) for x in folders], Path(OUT.value), remarks)
    for warning in warnings:
        print(warning, file=sys.stderr)
    print(done)


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
