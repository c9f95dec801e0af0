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
from typing import Any

import jax
from absl import flags

from nystromformer.config import ConfigError
from nystromformer.lab import cli
from nystromformer.training.devices import is_first
from nystromformer.training.files import first_line
from nystromformer.training.interrupt import Interrupted

_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "one of several processes")
_COORDINATOR = flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "in all", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "from 0", lower_bound=0)

HEARTBEAT_SECONDS = 30  # after which a process that is silent counts as gone
JOIN_SECONDS = 120


def join() -> None:
    """Joins the other processes, if there are any; all but the first fall silent.

    Raises:
      ConfigError: for flags that do not fit, and where no one can be joined.
    """
    given: dict[str, Any] = {
        "--coordinator": _COORDINATOR.value,
        "--num_processes": _NUM_PROCESSES.value,
        "--process_id": _PROCESS_ID.value,
    }
    missing = [name for name, value in given.items() if value is None]
    if not _DISTRIBUTED.value:
        if len(missing) < len(given):
            raise ConfigError(f"{', '.join(given)} go with --distributed")
        return
    if 0 < len(missing) < len(given):
        raise ConfigError(f"{missing[0]} is missing: give all of {', '.join(given)}")
    if not missing and given["--process_id"] >= given["--num_processes"]:
        raise ConfigError(
            f"--process_id={given['--process_id']} must be below --num_processes="
            f"{given['--num_processes']}"
        )
    try:
        jax.distributed.initialize(
            *given.values(),
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"the processes of this run did not find each other ({first_line(error)}); "
            f"outside SLURM and TPU pods give {', '.join(given)}"
        ) from error
    if not is_first():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for good


@contextlib.contextmanager
def together() -> Iterator[None]:
    """While inside, an error of one of several processes ends them all, each at once.

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
        advice = (
            "; if another process of this run is gone, start all of them again: they "
            "go on from the last checkpoint"
        )
        said = cli.one_line(error) if mendable else first_line(error) + advice
        print(f"error: {said}", file=sys.stderr, flush=True)
        os._exit(cli.BAD_INPUT if mendable else 1)
