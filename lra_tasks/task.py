"""The table of tasks, and how to get one by name."""

from dataclasses import fields
from typing import Any

from lra_tasks.base import Task
from lra_tasks.corpus import Corpus
from lra_tasks.errors import DataError
from lra_tasks.glue import Glue, LabelledTexts
from lra_tasks.image import Image
from lra_tasks.listops import ListOps
from lra_tasks.pathfinder import Pathfinder, PathX
from lra_tasks.recall import Recall
from lra_tasks.split import SPLITS, Split
from lra_tasks.text import Retrieval, Text

__all__ = ["LRA", "SPLITS", "TASKS", "Split", "Task", "get_task"]

_ALL = (ListOps, Text, Retrieval, Image, Pathfinder, PathX, Corpus, Glue)
_ALL += (LabelledTexts, Recall)
TASKS: dict[str, type[Task]] = {task.name: task for task in _ALL}
LRA = ("listops", "text", "retrieval", "image", "pathfinder")  # the paper's Table 3


def register_task(name: str, task: type[Task]) -> None:
    """Adds a task of another package to the table; a config may import it.

    A module that is imported again, under any name, brings its own again.
    """
    if getattr(task, "name", None) != name:
        raise DataError(f"{task}: its `name`, of its data too, must be {name!r}")
    known = TASKS.get(name, task)
    if known.__qualname__ != task.__qualname__:
        raise DataError(f"the name {name!r} is taken by {known}")
    TASKS[name] = task


def get_task(name: str, /, **options: Any) -> Task:
    """The task of that name; `options` are the fields of its class.

    DataError for an unknown name or option, or a value of wrong type or no sense.
    """
    if name not in TASKS:
        raise DataError(f"unknown task {name!r}: one of {', '.join(TASKS)}")
    known = [field.name for field in fields(TASKS[name])]
    if unknown := [option for option in options if option not in known]:
        message = f"{name} has no option {', '.join(unknown)}: its options are"
        raise DataError(f"{message} {', '.join(known)}")
    return TASKS[name](**options)
