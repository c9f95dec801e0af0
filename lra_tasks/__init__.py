"""Tasks over sequences of tokens as numpy arrays, for any framework.

They are those of the Long Range Arena, Recall, GLUE, plain text to pre-train on, and a
user's own texts and pictures.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lra_tasks.task import Task

# The tasks of the benchmark's table, in its order.
LRA = ("listops", "text", "retrieval", "image", "pathfinder")

# A task of this package by the module and name of its class, which is imported when the
# task is named; one of another package, which `register_task` has added, by its class.
TASKS: dict[str, "str | type[Task]"] = {
    "listops": "lra_tasks.listops:ListOps",
    "text": "lra_tasks.text:Text",
    "retrieval": "lra_tasks.text:Retrieval",
    "image": "lra_tasks.image:Image",
    "pathfinder": "lra_tasks.pathfinder.tasks:Pathfinder",
    "pathx": "lra_tasks.pathfinder.tasks:PathX",
    "corpus": "lra_tasks.corpus:Corpus",
    "glue": "lra_tasks.glue:Glue",
    "labelled_texts": "lra_tasks.labelled_texts:LabelledTexts",
    "pictures": "lra_tasks.pictures:Pictures",
    "recall": "lra_tasks.recall:Recall",
}
