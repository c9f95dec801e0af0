"""The table of tasks, and how to get one by name."""

import json
import os
from dataclasses import MISSING, fields
from typing import Any

from lra_tasks.base import Task
from lra_tasks.corpus import Corpus
from lra_tasks.errors import DataError
from lra_tasks.glue import Glue
from lra_tasks.image import Image
from lra_tasks.labelled_texts import LabelledTexts
from lra_tasks.listops import ListOps
from lra_tasks.pathfinder import Pathfinder, PathX
from lra_tasks.recall import Recall
from lra_tasks.split import SPLITS, Split
from lra_tasks.text import Retrieval, Text

__all__ = [
    "SPLITS",
    "TASKS",
    "DataError",
    "Split",
    "Task",
    "get_task",
    "register_task",
]

TASKS: dict[str, type[Task]] = {
    "listops": ListOps,
    "text": Text,
    "retrieval": Retrieval,
    "image": Image,
    "pathfinder": Pathfinder,
    "pathx": PathX,
    "corpus": Corpus,
    "glue": Glue,
    "labelled_texts": LabelledTexts,
    "recall": Recall,
}


def register_task(name: str, task: type[Task]) -> None:
    """Adds a task of another package to the table; a config may import it.

    A module that is imported again, under any name and from any folder, may register
    its task again, and so may a cell of a notebook.

    Args:
      name: the task's name, which its data have too.
      task: the class, whose attribute `name` is the same.

    Raises:
      DataError: if the two names differ, or the name is another class's.
    """
    if getattr(task, "name", None) != name:
        raise DataError(
            f"{task} must have the attribute name = {name!r}, which names its data; or "
            "register it under the name that it has"
        )
    registered = TASKS.get(name)
    if registered is not None and not _is_same_class(registered, task):
        raise DataError(
            f"the name {name!r} is taken by {registered}: give your task another name"
        )
    TASKS[name] = task


def default_options(name: str) -> dict[str, Any]:
    """Returns the defaults of a task's options, by keys such as "task.seed".

    They are in the types of JSON. A task that is not loaded has none.
    """
    if name not in TASKS:
        return {}
    defaults = {
        f"task.{field.name}": field.default
        for field in fields(TASKS[name])
        if field.default is not MISSING
    }
    return json.loads(json.dumps(defaults))


def _is_same_class(first: type, second: type) -> bool:
    """Whether two classes are one that was imported twice, or written anew.

    `nystromformer.attention` has the same function: tasks must not need a model.
    """
    if first.__qualname__ != second.__qualname__:
        return False
    first_file = _file_name(first)
    second_file = _file_name(second)
    if first_file is None or second_file is None:
        return True
    return first_file == second_file


def _file_name(cls: type) -> str | None:
    """The name of the file that a class is written in; None for a notebook's cell.

    The functions of the class know it. Its module does not: all config files have the
    same module name.
    """
    for member in vars(cls).values():
        code = getattr(member, "__code__", None)
        if code is not None and os.path.exists(code.co_filename):
            return os.path.basename(code.co_filename)
    return None


def get_task(name: str, /, **options: Any) -> Task:
    """Makes the task of that name.

    Args:
      name: a key of TASKS.
      **options: fields of its class.

    Raises:
      DataError: for an unknown name or option, or a value of wrong type or no sense.
    """
    if name not in TASKS:
        raise DataError(f"unknown task {name!r}: one of {', '.join(TASKS)}")
    known_options = [field.name for field in fields(TASKS[name])]
    unknown_options = [option for option in options if option not in known_options]
    if unknown_options:
        raise DataError(
            f"{name} has no option {', '.join(unknown_options)}: its options are "
            f"{', '.join(known_options)}"
        )
    return TASKS[name](**options)
