"""One run in several processes, on one machine or on many, as JAX's runtime joins them.

    python scripts/train.py --distributed …                        on SLURM, a TPU pod
    python scripts/train.py --distributed --coordinator=HOST:PORT \
        --num_processes=4 --process_id=0 …                         anywhere else

Every process has the same command, but for its number. The data are on a disk that all
of them see, the workdir there or in a bucket.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

import jax
from absl import flags

from nystromformer.config import ConfigError
from nystromformer.experiments import cli
from nystromformer.training.devices import is_host_0
from nystromformer.training.files import first_line
from nystromformer.training.interrupt import Interrupted

_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "one of several processes")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "how many", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "number, from 0", lower_bound=0)

ALL_THREE = "--coordinator, --num_processes, --process_id"
ADVICE = (
    "if another process of this run is gone, start all of them again: they resume from "
    "the last checkpoint"
)
HEARTBEAT_SECONDS = 30  # after which a process that is silent counts as gone
JOIN_SECONDS = 120


def join() -> None:
    """Joins the other processes, if there are any; all but the first print nothing.

    Raises:
      ConfigError: for flags that do not fit, and where no one can be joined.
    """
    given = (_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
    if not _DISTRIBUTED.value and given == (None, None, None):
        return
    if not _DISTRIBUTED.value or len({x is None for x in given}) == 2:
        raise ConfigError(f"give {ALL_THREE} together, and with --distributed")
    try:
        jax.distributed.initialize(
            *given,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run did not find each other ({first_line(error)}); "
            f"outside SLURM and TPU pods give {ALL_THREE}"
        ) from error
    if not is_host_0():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for good


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A context in which an error of one process ends all of them at once.

    Not by the usual way out: there JAX waits for those that are gone, and then aborts.
    """
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        if jax.process_count() == 1:
            raise
        mendable = isinstance(error, cli.USER_ERRORS)
        said = cli.one_line(error) if mendable else f"{first_line(error)}; {ADVICE}"
        print(f"error: {said}", file=sys.stderr, flush=True)
        os._exit(cli.BAD_INPUT if mendable else 1)
