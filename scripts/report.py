"""What runs have found: tables, figures and one page, with every number's command.

    python scripts/report.py RUNS… --out=DIR [--remark="image=its pixels were JPEG" …]

RUNS are workdirs of scripts/train.py, or folders with such somewhere below. What is
remarked on a task stands below the table, and each of its cells points to it.
"""

from pathlib import Path

from absl import flags

from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.lab.report.build import build

_OUT = flags.DEFINE_string(
    "out", None, "the folder to write; an earlier report in it is replaced"
)
_REMARK = flags.DEFINE_multi_string("remark", [], "TASK=TEXT; repeat")
flags.mark_flag_as_required("out")


def main(folders: list[str]) -> None:
    remarks = {}
    for remark in _REMARK.value:
        task, _, text = remark.partition("=")
        if not text.strip():
            raise ConfigError(f"--remark={remark} is not TASK=TEXT")
        if task in remarks:
            raise ConfigError(f"--remark={task}=… is there twice")
        remarks[task] = text
    out = Path(str(_OUT.value))
    print(build([Path(folder) for folder in folders], out, remarks))


if __name__ == "__main__":
    cli.run(main, arguments="RUNS")
