"""Prepares data, describes them in numbers and writes a few examples."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lra_tasks.base import SPLITS
from lra_tasks.pathfinder import Pathfinder
from lra_tasks.task import LRA, TASKS, DataError, Split, Task, get_task

SHOWN_PER_CLASS = 8
SHOWN_CHARACTERS = 1_000
ZOOM_TO = 96  # pixels a picture is enlarged to for the eye


def prepare(flags: Any) -> None:
    """Prepares the tasks that scripts/prepare_data.py asks for, and describes them.

    A task that fails does not stop the others; the exit status is then 2.
    """
    options = dict(parse_option(text) for text in flags.option)
    names = [*LRA, "pathx"] if "all" in flags.task else list(dict.fromkeys(flags.task))
    if options and len(names) > 1:
        raise DataError("--option needs one --task")
    tasks = []
    for name in names:
        drawn = issubclass(TASKS[name], Pathfinder)
        workers = {"num_workers": flags.num_workers} if drawn else {}
        tasks.append(get_task(name, **{**workers, **options}))
    errors = []
    for task in tasks:
        try:
            splits = {split: task.load(split, flags.data_dir) for split in SPLITS}
            print(f"{task.name}, in {task.folder(flags.data_dir)}")
            for split, examples in splits.items():
                print(f"  {split:10}  {describe(examples, task.num_classes)}")
            if flags.show:
                print(f"  shown in {show(task, splits['train'], Path(flags.show))}")
        except (DataError, OSError) as error:
            errors.append(f"error: {task.name}: {error}")
    if errors:
        print(*errors, sep="\n", file=sys.stderr)
        sys.exit(2)


def parse_option(text: str) -> tuple[str, object]:
    """KEY=VALUE as a key and a Python literal or, failing that, a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--option={text} is not KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return key, value


def describe(split: Split, num_classes: int) -> str:
    """Sizes, label shares, lengths and the sha256 of a split, in one line."""
    arrays = (split.inputs, split.lengths, split.labels, split.pairs)
    megabytes = sum(array.nbytes for array in arrays if array is not None) / 1e6
    documents = "" if split.pairs is None else f" of {len(split.inputs):,} documents"
    shares = np.bincount(split.labels, minlength=num_classes) / split.num_examples
    lengths = np.percentile(split.lengths, [0, 50, 90, 100]).astype(int)
    return (
        f"{split.num_examples:,} examples{documents}, {megabytes:,.1f} MB; "
        f"labels {' '.join(f'{share:.1%}' for share in shares)}; "
        f"lengths (0, 50, 90, 100 %) {' '.join(f'{n:,}' for n in lengths)}; "
        f"sha256 {split.content_hash}"
    )


def show(task: Task, split: Split, folder: Path) -> Path:
    """Writes the first examples of each class: a picture, or a text file."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = []  # by class, example and input
    for label in range(task.num_classes):
        first = np.flatnonzero(split.labels == label)[:SHOWN_PER_CLASS]
        rows = first[:, None] if split.pairs is None else split.pairs[first]
        inputs = ([split.inputs[i, : split.lengths[i]] for i in pair] for pair in rows)
        shown.append([[task.decode(tokens) for tokens in pair] for pair in inputs])
    if isinstance(task.decode(split.inputs[0]), np.ndarray):
        path = folder / f"{task.name}.png"
        contact_sheet([[view for (view,) in row] for row in shown]).save(path)
        return path
    path = folder / f"{task.name}.txt"
    lines = []
    for label, row in enumerate(shown):
        for texts in row:
            lines += [f"--- label {label}", *(x[:SHOWN_CHARACTERS] for x in texts)]
    path.write_text("\n".join([*lines, ""]), "utf-8")
    return path


def contact_sheet(rows: list[list[np.ndarray]]) -> Image.Image:
    """Joins pictures `[R, R]` into one, a row for each class."""
    side = max(len(picture) for row in rows for picture in row)
    zoom = max(1, ZOOM_TO // side)
    size = side * zoom
    cells = np.full((len(rows), size + 2, SHOWN_PER_CLASS, size + 2), 128, np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            large = picture.repeat(zoom, axis=0).repeat(zoom, axis=1)
            cells[y, :size, x, :size] = large  # a thin line stays between
    return Image.fromarray(cells.reshape(len(rows) * (size + 2), -1))
