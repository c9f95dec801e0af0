"""Prepares the data of tasks as tensorflow-datasets, and says how to load them.

    python scripts/prepare_data.py --task=NAME|all … [--data_dir=DIR]
        [--num_workers=N] [--option=KEY=VALUE …] [--show=DIR]

Data that are already prepared are only read. DATA.md says where the data come from.
"""

import ast
import os
import sys
from pathlib import Path

import numpy as np
from absl import flags
from PIL import Image

from lra_tasks.pathfinder import Pathfinder
from lra_tasks.split import DataError, Split
from lra_tasks.task import LRA, TASKS, Task, get_task
from nystromformer.experiments import cli

SHOWN_PER_CLASS = 8
SHOWN_CHARACTERS = 1_000

flags.DEFINE_multi_enum("task", None, [*TASKS, "all"], "task to prepare", required=True)
flags.DEFINE_string("data_dir", None, "folder of archives and prepared data")
flags.DEFINE_integer("num_workers", os.cpu_count(), "processes that draw Pathfinder", 1)
flags.DEFINE_multi_string("option", [], "KEY=VALUE: an option of the task")
flags.DEFINE_string("show", None, "folder to write a few examples of each class to")


def main() -> None:
    """Prepares the tasks one after the other; one that fails does not stop the rest."""
    asked, failed = flags.FLAGS, False
    names = [*LRA, "pathx"] if "all" in asked.task else list(dict.fromkeys(asked.task))
    for name in names:
        drawn = issubclass(TASKS[name], Pathfinder)
        options = {"num_workers": asked.num_workers} if drawn else {}
        try:
            options |= dict(map(parse_option, asked.option))
            prepare(get_task(name, **options), asked.data_dir, asked.show)
        except (DataError, OSError) as error:
            failed = True
            print(f"error: {name}: {error}", file=sys.stderr)
    if failed:
        sys.exit(2)


def parse_option(text: str) -> tuple[str, object]:
    """KEY=VALUE as a key and a Python literal or, failing that, a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--option={text} is not KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return key, value


def prepare(task: Task, data_dir: str | None, show: str | None) -> None:
    """Prepares a task, describes its splits, and prints the line that loads it."""
    splits = {split: task.load(split, data_dir) for split in task.splits}
    folder = task.folder(data_dir)
    print(f"{task.name}, in {folder}")
    for split, examples in splits.items():
        print(f"  {split:10}  {describe(examples, task.num_classes)}")
    loads = f'tfds.builder_from_directory("{folder}").as_data_source("train")'
    print(f"  {loads}")
    if show:
        print(f"  shown in {write_examples(task, splits['train'], Path(show))}")


def describe(split: Split, num_classes: int) -> str:
    """Sizes, label shares, lengths and the sha256 of a split, in one line."""
    documents = "" if split.pairs is None else f" of {len(split.inputs):,} documents"
    shares = np.bincount(split.labels, minlength=num_classes) / split.num_examples
    lengths = np.percentile(split.lengths, [0, 50, 90, 100]).astype(int)
    return (
        f"{split.num_examples:,} examples{documents}; "
        f"labels {' '.join(f'{share:.1%}' for share in shares)}; "
        f"lengths (0, 50, 90, 100 %) {' '.join(f'{n:,}' for n in lengths)}; "
        f"sha256 {split.content_hash}"
    )


def write_examples(task: Task, split: Split, folder: Path) -> Path:
    """Writes the first examples of each class: a picture, or a text file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines, pictures = [], []
    for label, name in enumerate(task.label_names):
        for i in np.flatnonzero(split.labels == label)[:SHOWN_PER_CLASS]:
            rows = [i] if split.pairs is None else split.pairs[i]
            views = [task.decode(split.inputs[j][: split.lengths[j]]) for j in rows]
            lines += [f"--- {name}", *(str(view)[:SHOWN_CHARACTERS] for view in views)]
            pictures += [np.pad(x, 1) for x in views if isinstance(x, np.ndarray)]
    if pictures:  # a row for each class
        side, path = len(pictures[0]), folder / f"{task.name}.png"
        sheet = np.stack(pictures).reshape(task.num_classes, -1, side, side)
        sheet = sheet.swapaxes(1, 2).reshape(task.num_classes * side, -1)
        Image.fromarray(sheet.repeat(3, 0).repeat(3, 1)).save(path)
    else:
        path = folder / f"{task.name}.txt"
        path.write_text("\n".join([*lines, ""]), "utf-8")
    return path


if __name__ == "__main__":
    cli.run(main)
