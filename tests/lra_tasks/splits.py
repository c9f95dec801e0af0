"""The splits of a task, their hashes and their texts."""

from pathlib import Path

from lra_tasks.split import Split
from lra_tasks.task import Task


def load_all(task: Task, data_dir: Path | str) -> list[Split]:
    """Loads the train, validation and test splits, and further ones."""
    return [task.load(split, data_dir) for split in task.splits]


def hashes(task: Task, data_dir: Path | str) -> list[str]:
    return [split.content_hash for split in load_all(task, data_dir)]


def texts_of(task: Task, split: Split) -> list[tuple[str, int]]:
    """The decoded text of each row, and its label."""
    texts = []
    for row, length, label in zip(
        split.inputs[:], split.lengths, split.labels, strict=True
    ):
        texts.append((task.decode(row[:length]), int(label)))
    return texts
