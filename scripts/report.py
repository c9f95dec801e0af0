"""What runs have found: tables, figures and one page, with every number's command.

    python scripts/report.py RUNS… --out=DIR

RUNS are workdirs of scripts/train.py, or folders with such somewhere below.
"""

from pathlib import Path

from absl import flags

from scripts import command
from scripts.reporting.build import build

_OUT = flags.DEFINE_string(
    "out", None, "the folder to write; an earlier report in it is replaced"
)
flags.mark_flag_as_required("out")


def main(folders: list[str]) -> None:
    print(build([Path(folder) for folder in folders], Path(str(_OUT.value))))


if __name__ == "__main__":
    command.run(main, arguments="RUNS")
