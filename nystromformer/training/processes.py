"""Several processes, one run: which of them writes, and what all have to agree on.

Every process runs the same program, so whatever decides what comes next (a signal that
one of them got, a clock) has to be the same number in all of them.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils


def is_first() -> bool:
    """Whether this process is the one that speaks and writes."""
    return jax.process_index() == 0


def largest(value: int) -> int:
    """The largest of all processes' values."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int32(value)).max())


def of_first(value: int) -> int:
    """The first process's value."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def wait_for_all(where: str) -> None:
    """Returns when every process is there."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(where)
