"""How long it takes from the start of a training run to its first loss.

python scripts/first_step.py --out=DIR [--task=listops …] [--attention=nystrom …]

writes DIR/README.md and first_step.json. A start is a process of scripts/train.py in a
new workdir, from before it is made until the line of its first step, when it is killed.
A cold start finds no compiled program on disk; the warm one after it has those of the
cold one. The data have to be prepared (DATA.md), under $LRA_DATA_DIR if not at home.
"""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.lab import cli
from nystromformer.lab.bench.measure import quartiles
from nystromformer.lab.bench.starts import seconds_to_first_loss
from nystromformer.lab.bench.tables import markdown
from nystromformer.lab.page import PAGE, open_folder, page, source
from nystromformer.training.files import write_json, write_text

TITLE = "First step"
FILE = "first_step.json"
CONFIGS = Path(__file__).parents[1] / "configs"
STARTS = ("cold", "warm")
NOTE = """\
Seconds from the start of the process to the first loss: median (quartiles) of rounds
in which all take turns. Cold: no compiled program is on disk; warm: those of the cold
start just before.
"""

_OUT = flags.DEFINE_string("out", None, "the folder to write")
_TASK = flags.DEFINE_multi_enum("task", list(LRA), list(TASKS), "repeat")
_ATTENTION = flags.DEFINE_multi_enum(
    "attention", ["nystrom"], list(ATTENTIONS), "repeat"
)
_CHANGE = flags.DEFINE_multi_string(
    "change", [], "GROUP.KEY=VALUE in every config; repeat"
)
_ROUNDS = flags.DEFINE_integer("rounds", 7, "of all", 1)
flags.mark_flag_as_required("out")


def main() -> None:
    made_by = source()
    out = open_folder(Path(str(_OUT.value)).expanduser(), TITLE)
    runs = dict.fromkeys(itertools.product(_TASK.value, _ATTENTION.value))
    rows = [
        {"task": task, "attention": attention, **{start: [] for start in STARTS}}
        for task, attention in runs
    ]
    for _ in range(_ROUNDS.value):
        for row in rows:
            config = f"{CONFIGS}/{row['task']}.py:{row['attention']}"
            changes = [f"--config.{change}" for change in _CHANGE.value]
            with tempfile.TemporaryDirectory() as folder:
                for start in STARTS:
                    arguments = [f"--config={config}", *changes]
                    row[start].append(seconds_to_first_loss(arguments, Path(folder)))
        write_json(out / FILE, {**made_by, "rows": rows})
        write_text(out / PAGE, page(TITLE, made_by, [*table(rows), NOTE]))
    print(*table(rows), sep="\n")


def table(rows: Sequence[Mapping]) -> list[str]:
    """Lines of Markdown: a row for each task and attention."""
    body = [
        [f"{row['task']}, {row['attention']}", *(_cell(row[start]) for start in STARTS)]
        for row in rows
    ]
    return markdown([["seconds", *STARTS], *body])


def _cell(seconds: Sequence[float]) -> str:
    if len(seconds) < 2:
        return "".join(f"{x:.1f}" for x in seconds)
    lower, median, upper = quartiles(seconds)
    return f"{median:.1f} ({lower:.1f}–{upper:.1f})"


if __name__ == "__main__":
    cli.run(main)
