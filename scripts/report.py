"""Writes tables and figures of finished and unfinished runs as one page.

    python scripts/report.py RUNS… --out=DIR [--compare_with=softmax,identity]

RUNS are workdirs of scripts/train.py, folders that contain workdirs, or earlier
reports. DIR is a new folder or an earlier report. It gets README.md with its pictures,
the scores as scores.csv, and the records of the runs: runs.jsonl and curves.jsonl, from
which the report can be written again without the workdirs. To add runs to a report,
name both: RUNS DIR --out=DIR; a run of the same name takes the place of the earlier
one. In a README.md that is there, only what stands between "<!-- report: … -->" and
"<!-- end of report -->" is written anew.
--compare_with names the attentions from which differences are shown.
"""

import start

start.prepare()

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.report.report_page import write_report

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_COMPARE_WITH = flags.DEFINE_list(
    "compare_with",
    [],
    "attentions from which the differences are shown; by default softmax and the first",
)


def main(folders: list[str]) -> None:
    """Writes the report, and prints how many runs are finished or failed.

    Args:
      folders: workdirs, folders that contain workdirs, or earlier reports.
    """
    paths = [cli.local_folder(folder) for folder in folders]
    out = cli.local_folder(_OUT.value)
    print(write_report(paths, out, _COMPARE_WITH.value))


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
