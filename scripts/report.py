"""Writes tables and figures of finished and unfinished runs as one page.

    python scripts/report.py RUNS… --out=DIR [--by=attention.num_landmarks]
        [--compare_with=softmax,identity]

RUNS are workdirs of scripts/train.py, or folders that contain workdirs. DIR is a new
folder or an earlier report; it gets report.html, report.md, LaTeX, CSV and figures.
--by names the settings that colours tell apart in the figures of scores by cost.
--compare_with names the attentions from which differences are shown.
"""

from absl import flags

from nystromformer.experiments import cli
from nystromformer.experiments.report.build import build

_OUT = flags.DEFINE_string("out", None, "folder to write", required=True)
_BY = flags.DEFINE_list(
    "by", ["attention"], "attention, or keys of the config: a colour for each value"
)
_COMPARE_WITH = flags.DEFINE_list(
    "compare_with",
    [],
    "attentions from which the differences are shown; by default softmax and the first",
)


def main(folders: list[str]) -> None:
    """Writes the report, and prints how many runs are finished.

    Args:
      folders: workdirs, or folders that contain workdirs.
    """
    paths = [cli.local_folder(folder) for folder in folders]
    out = cli.local_folder(_OUT.value)
    print(build(paths, out, _BY.value, _COMPARE_WITH.value))


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
