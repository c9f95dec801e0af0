"""Sixty short documents, and the task that reads them."""

from pathlib import Path
from typing import Any

import numpy as np

from lra_tasks.split import Split
from lra_tasks.task import Task, get_task
from tests.lra_tasks.splits import texts_of


def make_document(number: int, rng: np.random.Generator) -> str:
    """Twelve sentences of one to eight short words, which no other document has."""
    sentences = []
    for i in range(12):
        words = "ab " * int(rng.integers(1, 9))
        sentences.append(f"Nº{number}, {i}: {words}end.")
    return " ".join(sentences)


def make_documents() -> list[str]:
    rng = np.random.default_rng(0)
    return [make_document(number, rng) for number in range(60)]


DOCUMENTS = make_documents()
FILES = {
    f"{number % 7}/{number}.txt": text.encode() for number, text in enumerate(DOCUMENTS)
}


def corpus(
    folder: Path, *, max_length: int = 96, tokenizer: str = "byte", **options: Any
) -> Task:
    """The task of the documents of a folder."""
    return get_task(
        "corpus",
        source_dir=str(folder),
        max_length=max_length,
        tokenizer=tokenizer,
        **options,
    )


def parts_in_order(task: Task, split: Split) -> list[str]:
    """The text of each row of a split, with both parts in the document's order."""
    joined_parts = []
    for text, label in texts_of(task, split):
        start, first, second, end = text.replace("[CLS]", "[SEP]").split("[SEP]")
        assert start == ""
        assert end == ""
        parts = [first.strip(), second.strip()]
        if label == 0:
            parts.reverse()
        joined_parts.append(" ".join(parts))
    return joined_parts
