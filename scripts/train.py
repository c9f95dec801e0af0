"""Trains one model on one task, or resumes a run that was stopped.

    python scripts/train.py --config=configs/listops.py:nystrom --workdir=DIR
        [--config.group.key=value …] [--max_minutes=60]

Run the same command again to resume. SIGTERM (exit status 143), Ctrl-C (130), a closed
terminal (129) and --max_minutes (142) save before they stop the run. Compiled programs
are cached for the next start, unless JAX_ENABLE_COMPILATION_CACHE=false.
"""

import signal

from absl import flags
from ml_collections import config_flags

from nystromformer.config import Config
from nystromformer.experiments import cli, distributed
from nystromformer.experiments.run import Experiment
from nystromformer.experiments.session import finish, keep_compiled_programs, summary
from nystromformer.experiments.workdir import find_folder

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "FILE.py[:ATTENTION,PRESET]; beside --help, lists its keys"
)
_WORKDIR = cli.define_folder(
    "workdir", "folder of the run, or gs://BUCKET/RUN; made if missing", True, True
)
_MAX_MINUTES = cli.define_max_minutes("save and stop after this time")
_SEQ_SHARDS = flags.DEFINE_integer(
    "sequence_parallelism", 1, "split each sequence over this many devices", 1
)
flags.adopt_module_key_flags(distributed)
flags.mark_flag_as_required("config")


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
