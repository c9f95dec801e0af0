"""Documents: read from files, cut into sentences, and packed into rows of two parts."""

import collections
import re

import numpy as np
import pytest

from lra_tasks.documents import SENTENCE, make_examples, read_documents, split_of
from tests.commands import ROOT
from tests.lra_tasks.archive_server import write

DATA = (ROOT / "DATA.md").read_text()


def test_sentences_keep_all_their_characters():
    text = 'He said "go." (He left.)\nThen v. 1.5 came! “Why?” asked he...  No end'
    assert SENTENCE.findall(text) == [
        'He said "go."',
        "(He left.)",
        "Then v.",
        "1.5 came!",
        "“Why?”",
        "asked he...",
        "No end",
    ]


def test_read_documents_between_blank_lines_or_whole(tmp_path):
    write(tmp_path, {"b.txt": b"\n\nOne.\nTwo.\n \nThree."})
    assert list(read_documents(tmp_path / "b.txt", True)) == ["One.\nTwo.", "Three."]
    assert list(read_documents(tmp_path / "b.txt", False)) == ["One.\nTwo.\n \nThree."]


def test_split_of_gives_train_eight_tenths_and_the_others_one_each():
    """Within four standard deviations of 2,000 draws."""
    sizes = collections.Counter(split_of(f"document {i}", 0) for i in range(2_000))
    assert sizes["train"] == pytest.approx(1_600, abs=72)
    assert sizes["validation"] == pytest.approx(200, abs=54)
    assert sizes["test"] == pytest.approx(200, abs=54)


def test_the_recipe_for_wikipedia_writes_documents_between_blank_lines(tmp_path):
    """The recipe is DATA.md's; the texts have every kind of blank line."""
    (recipe,) = re.findall(r"\n(def save.*?)\n\n\n", DATA, re.DOTALL)
    names = {"re": re}
    exec(recipe, names)
    save = names["save"]

    texts = ["One.\n\nTwo.", "\r\nOne.\r\n \r\n\r\nTwo.\r\n", "One.\r\rTwo.\rThree."]
    save(texts, tmp_path / "a.txt")

    documents = read_documents(tmp_path / "a.txt", True)
    assert [document.split() for document in documents] == [
        ["One.", "Two."],
        ["One.", "Two."],
        ["One.", "Two.", "Three."],
    ]


@pytest.mark.parametrize("longest", [20, 60])
def test_lengths_do_not_give_the_order_away(longest):
    """Lengths come in any order, up to more than the 30 tokens of half a row."""
    length_rng = np.random.default_rng(0)
    rng = np.random.default_rng(1)
    num_tokens = 0
    row_lengths = []
    first_is_longer = {0: [], 1: []}
    for _ in range(2500):
        lengths = length_rng.integers(0, longest, 12, endpoint=True)
        num_tokens += lengths.sum()
        sentences = [[5] * length for length in lengths]
        for first, second, label in make_examples(sentences, 64, rng):
            row_lengths.append(len(first) + len(second))
            if len(first) != len(second):
                first_is_longer[label].append(len(first) > len(second))

    assert max(row_lengths) == 64 - 3
    assert sum(row_lengths) > 0.85 * num_tokens
    assert abs(np.mean(first_is_longer[0]) - 0.5) < 0.03
    assert abs(np.mean(first_is_longer[1]) - 0.5) < 0.03
    num_in_order = len(first_is_longer[1])
    num_examples = len(first_is_longer[0]) + num_in_order
    assert abs(num_in_order / num_examples - 0.5) < 0.03
