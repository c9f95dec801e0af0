"""Prepares the data of tasks and says what came of it.

    python scripts/prepare_data.py --task=NAME|all … [--data_dir=DIR]
        [--num_workers=N] [--option=source_dir=DIR …] [--show=DIR]

Data that are there already are only read. DATA.md says where the data come from.
"""

import ast
import os
import sys
from pathlib import Path

import numpy as np
from absl import flags
from PIL import Image

from lra_tasks.base import SPLITS
from lra_tasks.pathfinder import Pathfinder
from lra_tasks.task import LRA, TASKS, DataError, Split, Task, get_task
from nystromformer.lab import cli

_TASK = flags.DEFINE_multi_enum("task", None, [*TASKS, "all"], "which data; repeat")
flags.mark_flag_as_required("task")
_DATA_DIR = flags.DEFINE_string(
    "data_dir", None, "where archives and prepared data lie"
)
_WORKERS = flags.DEFINE_integer(
    "num_workers", os.cpu_count(), "processes that draw Pathfinder", lower_bound=1
)
_OPTIONS = flags.DEFINE_multi_string("option", [], "KEY=VALUE, an option of the task")
_SHOW = flags.DEFINE_string("show", None, "a folder for a few examples of each class")

SHOWN_PER_CLASS = 8
SHOWN_CHARACTERS = 1_000
ZOOM_TO = 96  # pixels a picture is enlarged to for the eye


def main() -> None:
    options = dict(_parse_option(text) for text in _OPTIONS.value)
    asked = _TASK.value or []
    names = [*LRA, "pathx"] if "all" in asked else list(dict.fromkeys(asked))
    if options and len(names) > 1:
        raise DataError("--option needs one --task")
    errors = []
    for task in [_make_task(name, options) for name in names]:
        try:
            prepare(task)
        except (DataError, OSError) as error:  # the other tasks may have what they need
            errors.append(f"error: {task.name}: {error}")
    if errors:
        print(*errors, sep="\n", file=sys.stderr)
        sys.exit(cli.BAD_INPUT)


def _make_task(name: str, options: dict[str, object]) -> Task:
    drawn = issubclass(TASKS[name], Pathfinder)
    workers = {"num_workers": _WORKERS.value} if drawn else {}
    return get_task(name, **{**workers, **options})


def prepare(task: Task) -> None:
    """Prepares all splits and prints what they are."""
    splits = {split: task.load(split, _DATA_DIR.value) for split in SPLITS}
    print(f"{task.name}, in {task.folder(_DATA_DIR.value)}")
    for split, examples in splits.items():
        print(f"  {split:10}  {describe(examples, task.num_classes)}")
    if _SHOW.value:
        print(f"  shown in {show(task, splits['train'], Path(_SHOW.value))}")


def _parse_option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise DataError(f"--option={text} is not KEY=VALUE")
    try:
        return key, ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return key, value  # a word, whatever it looks like


def describe(split: Split, num_classes: int) -> str:
    """Sizes, labels, lengths and the hash that two machines can compare."""
    arrays = (split.inputs, split.lengths, split.labels, split.pairs)
    megabytes = sum(array.nbytes for array in arrays if array is not None) / 1e6
    documents = "" if split.pairs is None else f" of {len(split.inputs):,} documents"
    shares = np.bincount(split.labels, minlength=num_classes) / split.num_examples
    lengths = np.percentile(split.lengths, [0, 50, 90, 100]).astype(int)
    return "; ".join(
        [
            f"{split.num_examples:,} examples{documents}, {megabytes:,.1f} MB",
            f"labels {' '.join(f'{share:.1%}' for share in shares)}",
            f"lengths (0, 50, 90, 100 %) {' '.join(f'{n:,}' for n in lengths)}",
            f"sha256 {split.content_hash()}",
        ]
    )


def show(task: Task, split: Split, folder: Path) -> Path:
    """Writes the first examples of each class: a picture, or a text file."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = [
        [
            decode_example(task, split, index)
            for index in np.flatnonzero(split.labels == label)[:SHOWN_PER_CLASS]
        ]
        for label in range(task.num_classes)
    ]
    if isinstance(task.decode(split.inputs[0]), np.ndarray):
        path = folder / f"{task.name}.png"
        contact_sheet([[np.asarray(view) for (view,) in row] for row in shown]).save(
            path
        )
        return path
    path = folder / f"{task.name}.txt"
    with path.open("w", encoding="utf-8") as file:
        for label, row in enumerate(shown):
            for views in row:
                texts = [str(view)[:SHOWN_CHARACTERS] for view in views]
                print(f"--- label {label}", *texts, sep="\n", file=file)
    return path


def decode_example(task: Task, split: Split, index: int) -> list[str | np.ndarray]:
    """The one or two inputs of an example."""
    rows = [index] if split.pairs is None else split.pairs[index]
    return [task.decode(split.inputs[row, : split.lengths[row]]) for row in rows]


def contact_sheet(rows: list[list[np.ndarray]]) -> Image.Image:
    """Pictures `[R, R]`, a row for each class."""
    side = max(len(picture) for row in rows for picture in row)
    zoom = max(1, ZOOM_TO // side)
    pitch = side * zoom + 2  # a thin line between
    sheet = np.full((len(rows) * pitch, SHOWN_PER_CLASS * pitch), 128, np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            window = sheet[y * pitch :, x * pitch :][: side * zoom, : side * zoom]
            window[:] = picture.repeat(zoom, axis=0).repeat(zoom, axis=1)
    return Image.fromarray(sheet)


if __name__ == "__main__":
    cli.run(main)
