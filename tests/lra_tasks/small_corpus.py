"""Sixty short documents, and the task that reads them."""

import numpy as np

from lra_tasks.task import get_task
from tests.lra_tasks.archive_server import texts_of


def make_document(number, rng):
    """Twelve sentences of one to eight short words, which no other document has."""
    sentences = []
    for i in range(12):
        words = "ab " * int(rng.integers(1, 9))
        sentences.append(f"Nº{number}, {i}: {words}end.")
    return " ".join(sentences)


RNG = np.random.default_rng(0)
DOCUMENTS = [make_document(number, RNG) for number in range(60)]
FILES = {
    f"{number % 7}/{number}.txt": text.encode() for number, text in enumerate(DOCUMENTS)
}


def corpus(folder, *, max_length=96, tokenizer="byte", **options):
    return get_task(
        "corpus",
        source_dir=str(folder),
        max_length=max_length,
        tokenizer=tokenizer,
        **options,
    )


def parts_in_order(task, split):
    """Both parts of each row of a split, in the order of the document."""
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
