"""The processor cores that a command may use, and tasks that are made on all."""

import dataclasses
import os

from lra_tasks.task import Task


def num_cores() -> int:
    """Returns the number of cores that this process may use.

    Where the system does not say which these are, it is the number of all.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_all_cores(task: Task) -> Task:
    """Returns the task; on all cores if its option `num_workers` is None."""
    if task.num_workers is None:
        return dataclasses.replace(task, num_workers=num_cores())
    return task
