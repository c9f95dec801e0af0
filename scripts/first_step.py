"""Measures the time from the start of a training run to its first loss.

python scripts/first_step.py --out=DIR [--task=listops …] [--attention=nystrom …]

writes DIR/README.md and DIR/first_step.json. Each start runs scripts/train.py in a new
workdir and ends at the line of its first step. A cold start finds no compiled programs
on disk; the warm start after it finds those of the cold one. Prepare the data first
(DATA.md).
"""

from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.experiments import cli
from nystromformer.experiments.bench.starts import first_steps

cli.define_folder("out", "folder to write", required=True)
flags.DEFINE_multi_enum("task", [*LRA], [*TASKS], "task")
flags.DEFINE_multi_enum("attention", ["nystrom"], [*ATTENTIONS], "attention")
flags.DEFINE_multi_string("change", [], "GROUP.KEY=VALUE: a change to the configs")
flags.DEFINE_integer("rounds", 7, "number of starts", 1)

if __name__ == "__main__":
    cli.run(lambda: first_steps(flags.FLAGS))
