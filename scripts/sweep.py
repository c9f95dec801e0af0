"""Trains every run of a grid or a plan, each in its own folder.

    python scripts/sweep.py --workdir=DIR --config=configs/listops.py:quick
        --grid=attention.name=nystrom,softmax --grid=attention.num_landmarks=16,32
        [--seeds=3] [--config.group.key=value …]
    python scripts/sweep.py --workdir=DIR --plan=table3 [--plan=landmarks]
        [--preset=quick] [--tasks=listops,text] [--data_dir=DATA]

Several plans run one after another, without duplicates. Run the same command again to
resume, also after you have copied DIR to another machine. Finished runs are skipped,
and so are failed ones unless you pass --retry. A run whose folder is damaged or holds
another run is skipped with a warning. Ctrl-C and --max_minutes let the runs save.

Exit status: 0 all done; 1 some runs failed, were skipped or, with SLURM, have not
finished; 2 bad input or too little time; 130, 143, 142 and 129 stopped by Ctrl-C,
SIGTERM, --max_minutes and a closed terminal.
"""

import sys

import jax
from absl import flags
from ml_collections import config_flags

from configs.plans import PLANS
from nystromformer.experiments import cli
from nystromformer.experiments.sweep.command import sweep

cli.define_folder("workdir", "folder of the sweep; made if missing", required=True)
config_flags.DEFINE_config_file(
    "config", None, "FILE.py[:ATTENTION,PRESET]; beside --help, lists its keys"
)
flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE: a config key and its values")
flags.DEFINE_integer("seeds", None, "seeds of each setting", lower_bound=1)
flags.DEFINE_multi_enum("plan", [], sorted(PLANS), "plan to run instead of --config")
flags.DEFINE_string("preset", None, "preset to use instead of the plan's")
flags.DEFINE_list("tasks", None, "tasks to run instead of the plan's")
flags.DEFINE_string("data_dir", None, "folder of the plan's data")
flags.DEFINE_enum("executor", "local", ["local", "slurm"], "where to run")
flags.DEFINE_integer(
    "max_parallel", None, "runs at a time; default: one, or one for each GPU", 1
)
cli.define_max_minutes("save and stop after this time; slurm: limit of each run")
flags.DEFINE_bool("retry", False, "run failed runs again")
flags.DEFINE_bool("dry_run", False, "print the commands and exit")
flags.DEFINE_string("partition", None, "slurm: partition")
flags.DEFINE_integer("time", None, "slurm: minutes of each job", lower_bound=5)
flags.DEFINE_integer("gpus", None, "slurm: GPUs of each job", lower_bound=0)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")  # the accelerators are for the runs
    flag = flags.FLAGS["config"]
    config = config_flags.get_config_filename(flag) if flag.value else None
    changes = config_flags.get_override_values(flag) if flag.value else {}
    sys.exit(0 if sweep(flags.FLAGS, config, changes) else 1)


if __name__ == "__main__":
    cli.run(main)
