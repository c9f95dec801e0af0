"""How long it takes from the start of a training run to its first loss.

python scripts/first_step.py --out=DIR [--task=listops …] [--attention=nystrom …]

writes DIR/README.md and first_step.json. A start is a process of scripts/train.py in a
new workdir, from before it is made until the line of its first step, when it is killed.
A cold start finds no compiled program on disk; the warm one after it has those of the
cold one. The data have to be prepared (DATA.md), under $LRA_DATA_DIR if not at home.
"""

from absl import flags

from lra_tasks.task import LRA, TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.lab import cli
from nystromformer.lab.bench.starts import first_steps

flags.DEFINE_string("out", None, "the folder to write", required=True)
flags.DEFINE_multi_enum("task", [*LRA], [*TASKS], "repeat")
flags.DEFINE_multi_enum("attention", ["nystrom"], [*ATTENTIONS], "repeat")
flags.DEFINE_multi_string("change", [], "GROUP.KEY=VALUE of configs; repeat")
flags.DEFINE_integer("rounds", 7, "of all", 1)

if __name__ == "__main__":
    cli.run(lambda: first_steps(flags.FLAGS))
