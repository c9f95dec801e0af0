"""Trains every point of a grid or a plan, each in a folder of its own.

    python scripts/sweep.py --workdir=DIR --config=configs/listops.py:quick \
        --grid=attention.name=nystrom,softmax --grid=attention.num_landmarks=16,32 \
        [--seeds=3] [--config.group.key=value …]
    python scripts/sweep.py --workdir=DIR --plan=table3 [--plan=landmarks] \
        [--preset=quick] [--tasks=listops,text] [--data_dir=DATA]

Several plans run one after another, without duplicates. The same command goes on where
it was stopped, here or where DIR was copied to: finished runs are skipped, and so are
failed ones unless you pass --retry. Ctrl-C and --max_minutes let the runs save. Exit
status: 0 all done; 1 some failed or, with SLURM, not finished; 2 bad input, or too few
minutes; 130, 143, 142, 129 stopped by Ctrl-C, SIGTERM, --max_minutes, a closed window.
"""

import sys

import jax
from absl import flags
from ml_collections import config_flags

from configs.plans import PLANS
from nystromformer.lab import cli
from nystromformer.lab.sweep.command import sweep

cli.define_workdir("the sweep's folder; made if missing")
config_flags.DEFINE_config_file("config", None, "FILE.py[:ATTENTION,PRESET]")
flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE; may be repeated")
flags.DEFINE_integer("seeds", None, "runs of each point", lower_bound=1)
flags.DEFINE_multi_enum("plan", [], sorted(PLANS), "instead of --config; repeat")
flags.DEFINE_string("preset", None, "of the plan's tasks, if not the plan's")
flags.DEFINE_list("tasks", None, "instead of the plan's")
flags.DEFINE_string("data_dir", None, "where the plan's data lie")
flags.DEFINE_enum("executor", "local", ["local", "slurm"], "where to run")
flags.DEFINE_integer("max_parallel", None, "runs at a time; local: one a GPU", 1)
cli.define_max_minutes("save and stop then; slurm: each run")
flags.DEFINE_bool("retry", False, "try failed runs again")
flags.DEFINE_bool("dry_run", False, "print the commands and do nothing")
flags.DEFINE_string("partition", None, "slurm: where")
flags.DEFINE_integer("time", None, "slurm: minutes of a job", lower_bound=5)
flags.DEFINE_integer("gpus", None, "slurm: of each job", lower_bound=0)
flags.mark_flag_as_required("workdir")


def main() -> None:
    jax.config.update("jax_platforms", "cpu")  # the accelerators are for the runs
    flag = flags.FLAGS["config"]
    config = config_flags.get_config_filename(flag) if flag.value else None
    changes = config_flags.get_override_values(flag) if flag.value else {}
    sys.exit(0 if sweep(flags.FLAGS, config, changes) else 1)


if __name__ == "__main__":
    cli.run(main)
