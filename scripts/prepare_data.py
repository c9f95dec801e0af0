"""Prepares the data of tasks as tensorflow-datasets, and says how to load them.

python scripts/prepare_data.py --task=NAME|all … [--data_dir=DIR] [--option=KEY=VALUE …]

Data that are already prepared are only read. DATA.md says where the data come from.
"""

import ast
import sys
from typing import get_args, get_type_hints

from absl import flags

from lra_tasks.errors import DataError
from lra_tasks.pathfinder import Pathfinder
from lra_tasks.task import LRA, TASKS, Task, get_task
from nystromformer.experiments import cli
from nystromformer.experiments.provenance import num_cores

_TASK = flags.DEFINE_multi_string("task", None, "NAME or all", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "folder of archives and data")
_OPTION = flags.DEFINE_multi_string("option", [], "KEY=VALUE: an option of the task")


def main() -> None:
    """Prepares the tasks one after the other; one that fails does not stop the rest."""
    failed = False
    for name in [*LRA, "pathx"] if "all" in _TASK.value else _TASK.value:
        task = TASKS.get(name, Task)
        options = dict(parse_option(x, task) for x in _OPTION.value)
        drawn = issubclass(task, Pathfinder)
        workers = {"num_workers": num_cores()} if drawn else {}
        try:
            prepare(get_task(name, **workers | options))
        except (DataError, OSError) as error:
            failed = True
            said = str(error).removeprefix(f"{name}: ")
            print(f"error: {name}: {said}", file=sys.stderr)
    sys.exit(2 if failed else 0)


def parse_option(text: str, task: type[Task]) -> tuple[str, object]:
    """KEY=VALUE as a key and a string or, of an option of another type, a literal."""
    key, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--option={text} is not KEY=VALUE")
    kind = get_type_hints(task).get(key)
    if str in (kind, *get_args(kind)) and value != "None":
        return key, value
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def prepare(task: Task) -> None:
    """Prepares a task, and prints its sizes and the line that loads it."""
    splits = {split: task.load(split, _DATA_DIR.value) for split in task.splits}
    loads = f'builder_from_directory("{task.folder(_DATA_DIR.value)}")'
    print(f'{task.name}: tfds.{loads}.as_data_source("train")')
    for name, split in splits.items():
        pairs = split.pairs is not None
        documents = f" of {len(split.inputs):,} documents" if pairs else ""
        numbers = f"{split.num_examples:,} examples{documents}"
        print(f"  {name:10}  {numbers}; sha256 {split.content_hash}")


if __name__ == "__main__":
    cli.run(main)
