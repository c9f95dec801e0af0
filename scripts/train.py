"""Trains one model on one task, or goes on where that was stopped.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR
        [--config.group.key=value …] [--max_minutes=60]

The same command again goes on where a run was stopped: by SIGTERM (exit status 143),
Ctrl-C (130), a closed terminal (129) or after --max_minutes (142): all save first.
JAX_ENABLE_COMPILATION_CACHE=false keeps no compiled programs for the next start.
"""

import signal

from absl import flags
from ml_collections import config_flags

from nystromformer.config import Config
from nystromformer.lab import cli, distributed
from nystromformer.lab.run import Experiment
from nystromformer.lab.session import finish, keep_compiled_programs, summary
from nystromformer.lab.workdir import find_folder

_CONFIG = config_flags.DEFINE_config_file("config", None, "FILE.py[:ATTENTION,PRESET]")
_WORKDIR = cli.define_workdir(
    "where the run lives, or gs://BUCKET/RUN; made if missing", buckets=True
)
_MAX_MINUTES = cli.define_max_minutes("save and stop after this time")
_SEQ_SHARDS = flags.DEFINE_integer(
    "seq_shards", 1, "devices that share one sequence; the rest share the batch", 1
)
flags.adopt_module_key_flags(distributed)
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    if _MAX_MINUTES.value:
        signal.setitimer(signal.ITIMER_REAL, 60 * _MAX_MINUTES.value)
    distributed.join()
    keep_compiled_programs()
    experiment = Experiment.from_config(Config.from_mapping(_CONFIG.value.to_dict()))
    with distributed.together():
        workdir = find_folder(str(_WORKDIR.value))
        print(summary(finish(experiment, workdir, _SEQ_SHARDS.value)))


if __name__ == "__main__":
    cli.run(main)
