"""Prepares the data of tasks, and prints their sizes, label shares and hashes.

    python scripts/prepare_data.py --task=NAME|all … [--data_dir=DIR]
        [--num_workers=N] [--option=source_dir=DIR …] [--show=DIR]

Data that are already prepared are only read. DATA.md says where the data come from.
"""

import os

from absl import flags

from lra_tasks.task import TASKS
from nystromformer.experiments import cli
from nystromformer.experiments.examples import prepare

flags.DEFINE_multi_enum("task", None, [*TASKS, "all"], "task to prepare")
flags.DEFINE_string("data_dir", None, "folder of archives and prepared data")
flags.DEFINE_integer(
    "num_workers",
    os.cpu_count(),
    "processes that draw Pathfinder",
    lower_bound=1,
)
flags.DEFINE_multi_string("option", [], "KEY=VALUE: an option of the task")
flags.DEFINE_string("show", None, "folder to write a few examples of each class to")
flags.mark_flag_as_required("task")

if __name__ == "__main__":
    cli.run(lambda: prepare(flags.FLAGS))
