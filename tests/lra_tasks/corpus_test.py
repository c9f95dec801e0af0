"""Corpus: documents to pairs of parts, in order or swapped, on sub-words or bytes."""

import collections
import json
import re

import numpy as np
import pytest

from lra_tasks import subwords
from lra_tasks.corpus import (
    SENTENCE,
    make_examples,
    read_documents,
    split_long,
    split_of,
)
from lra_tasks.errors import DataError
from lra_tasks.storage import Rows
from tests.commands import ROOT
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.small_corpus import DOCUMENTS, FILES, corpus, parts_in_order
from tests.lra_tasks.splits import load_all

SEP = 3
MODEL = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_parts_follow_one_another_and_label_says_the_order(tmp_path, texts, tokenizer):
    task = corpus(texts, tokenizer=tokenizer, vocab_size=300)
    documents_by_split = []
    for split in load_all(task, tmp_path):
        assert set(np.unique(split.labels)) == {0, 1}
        documents = set()
        for parts in parts_in_order(task, split):
            (document,) = [text for text in DOCUMENTS if parts in text]
            documents.add(document)
        documents_by_split.append(documents)

    # Each document is in one split.
    assert set.union(*documents_by_split) == set(DOCUMENTS)
    assert sum(map(len, documents_by_split)) == len(DOCUMENTS)
    assert len(documents_by_split[0]) > 40


def test_passages_that_documents_share_are_in_one_split(tmp_path, capsys):
    """A licence ends every document; its passages are equal, wherever they are cut."""
    licence = " ".join(f"Clause {i} says that you may copy it." for i in range(40))
    files = {}
    for number, document in enumerate(DOCUMENTS):
        files[f"{number}.txt"] = f"{document} {licence}".encode()
    write(tmp_path / "text", files)
    task = corpus(tmp_path / "text", max_length=256)

    train_split, validation_split, test_split = load_all(task, tmp_path)

    train = set(parts_in_order(task, train_split))
    validation = set(parts_in_order(task, validation_split))
    test = set(parts_in_order(task, test_split))
    assert not train & (validation | test)
    assert not validation & test
    assert "Clause" in str(test)
    assert "examples left out of train: repeated" in capsys.readouterr().err


def test_a_corpus_makes_the_same_rows_on_every_machine(tmp_path, texts):
    train = corpus(texts).load("train", tmp_path)
    # The expected value is copied from a run.
    assert train.content_hash[:16] == "62965875defaf8ac"


def test_rows_of_a_corpus_stay_on_disk_and_are_indexed_as_an_array(tmp_path, texts):
    train = corpus(texts).load("train", tmp_path)
    assert isinstance(train.inputs, Rows)
    rows = train.inputs[:]
    assert rows.shape[1] == 96
    assert rows.dtype == np.uint16
    np.testing.assert_array_equal(train.inputs[[3, 0, 3]], rows[[3, 0, 3]])
    np.testing.assert_array_equal(train.inputs[5], rows[5])


def test_rows_of_a_corpus_have_two_separators_and_their_length(tmp_path, texts):
    train = corpus(texts).load("train", tmp_path)
    rows = train.inputs[:]
    assert ((rows == SEP).sum(1) == 2).all()
    assert ((rows > 0).sum(1) == train.lengths).all()
    assert train.lengths.mean() > 60


def test_special_tokens_come_first(texts):
    task = corpus(texts)
    assert task.vocab_size == 261
    assert task.special_tokens == (0, 1, 2, 3, 4)
    assert task.separator == SEP
    assert task.mask_token == 4


def test_a_file_with_several_paths_is_one_document(texts):
    files = corpus(texts).source_files()
    (texts / "again").symlink_to(texts)
    assert corpus(texts).source_files() == files


def test_the_notes_that_macos_keeps_beside_texts_are_no_documents(tmp_path, texts):
    before = corpus(texts).load("train", tmp_path / "a").content_hash
    for number in range(60):
        if number % 7 != 3:  # Folder 3 is the link.
            write(texts, {f"{number % 7}/._{number}.txt": b"\0Mac. OS. X."})
    assert corpus(texts).load("train", tmp_path / "b").content_hash == before


@pytest.mark.slow
def test_another_run_can_use_the_vocabulary(tmp_path, texts):
    task = corpus(texts, tokenizer="bpe", vocab_size=300)
    train = task.load("train", tmp_path)
    file = task.vocabulary_file(tmp_path)
    copied_file = tmp_path / "copied.json"
    copied_file.write_bytes(file.read_bytes())

    by_file = corpus(texts, tokenizer=str(file))
    assert by_file.vocab_size == task.vocabulary.vocab_size == 300
    assert by_file.load("train", tmp_path).content_hash == train.content_hash
    assert by_file.folder() == corpus(texts, tokenizer=str(copied_file)).folder()


@pytest.mark.slow
def test_a_run_refuses_its_vocabulary_with_other_texts(tmp_path, texts):
    task = corpus(texts, tokenizer="bpe", vocab_size=300)
    task.load("train", tmp_path)
    write(texts, {f"more/{i}.txt": b"Zebras. Zebus." for i in range(9)})
    run = corpus(texts, tokenizer="bpe", vocab_size=300)
    run.use_tokenizer(str(task.vocabulary_file(tmp_path)))
    message = r"other texts .*: restore them, or start a new"
    with pytest.raises(DataError, match=message):
        run.load("train", tmp_path)


def test_the_tokenizer_is_learnt_on_train_alone(tmp_path):
    """Evaluation has much of what train lacks."""
    train = [text for text in DOCUMENTS if split_of(text, 0) == "train"]
    zebras = ["zqzq zqzq. " * 40 + f"{i}." for i in range(200)]
    evaluation = [text for text in zebras if split_of(text, 0) != "train"]
    assert {split_of(text, 0) for text in evaluation} == {"validation", "test"}
    for number, text in enumerate(train + evaluation):
        write(tmp_path / "text", {f"{number}.txt": text.encode()})

    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=300)
    task.load("train", tmp_path)
    subwords.train(train, 300, tmp_path / "train.json")

    expected = json.loads((tmp_path / "train.json").read_text())
    learnt = json.loads(task.vocabulary_file(tmp_path).read_text())
    assert set(learnt["model"]["vocab"]) == set(expected["model"]["vocab"])


def test_a_small_corpus_is_learnt_with_the_vocab_size_that_the_error_names(tmp_path):
    write(tmp_path / "text", FILES)
    with pytest.raises(DataError, match="take vocab_size=") as caught:
        corpus(tmp_path / "text", tokenizer="bpe").load("train", tmp_path)
    (size,) = re.findall(r"take vocab_size=(\d+), tokenizer=byte", str(caught.value))

    for options in ({"tokenizer": "bpe", "vocab_size": int(size)}, {}):
        train = corpus(tmp_path / "text", **options).load("train", tmp_path)
        assert train.num_examples > 40


def expected_test_rows(task):
    """The rows of test and their labels, made document by document.

    Documents come in the order of their files, and of the splits test comes first.
    """
    rng = np.random.default_rng(task.seed)
    examples = []
    for path in task.source_files():
        (document,) = read_documents(path, False)
        if split_of(document, task.seed) != "test":
            continue
        sentences = task.vocabulary.encode(SENTENCE.findall(document))
        for first, second, label in make_examples(sentences, 96, rng):
            row = task.vocabulary.row(first, second, max_length=96)
            examples.append((row, label))
    return examples


def test_the_seed_draws_splits_cuts_and_orders(tmp_path, texts):
    examples_by_seed = {}
    for seed in (0, 5):
        task = corpus(texts, seed=seed)
        test = task.load("test", tmp_path)
        rows = zip(test.inputs[:], test.lengths, test.labels, strict=True)
        examples = [(row[:length].tolist(), label) for row, length, label in rows]
        assert examples == expected_test_rows(task)
        examples_by_seed[seed] = examples
    assert examples_by_seed[0] != examples_by_seed[5]


@pytest.mark.parametrize(
    ("files", "tokenizer", "message"),
    [
        ({"a.txt": b"One. Two. " * 99}, "byte", "1 documents .* documents=blank_lines"),
        ({f"{i}.txt": b"no %d" % i for i in range(60)}, "byte", "has two sentences"),
        ({"a.txt": b"caf\xe9 au lait."}, "byte", r"a\.txt is not UTF-8 text"),
        (FILES, "bpe", r"has only \d+ sub-words: take vocab_size="),
        ({}, "byte", r"no files /.*/\*\*/\*\.txt"),
        ({"x.json": b"{}"}, "x.json", "is not a tokenizer.json"),
        ({}, "x.json", "tokenizer is byte or a tokenizer.json, not"),
        ({"x.json": MODEL}, "x.json", r"must have the tokens \[PAD\]"),
    ],
)
def test_a_wrong_corpus_is_one_line(tmp_path, monkeypatch, files, tokenizer, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, files)
    with pytest.raises(DataError, match=message) as caught:
        corpus(tmp_path, tokenizer=tokenizer).load("train", tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*array_record*"))


def test_a_corpus_that_is_divided_at_blank_lines_is_not_told_to_be(tmp_path):
    write(tmp_path, {"a.txt": b"One. Two. " * 99})
    task = corpus(tmp_path, documents="blank_lines")
    with pytest.raises(DataError, match=r"1 documents .*: add text$"):
        task.load("train", tmp_path / "data")


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
    """Some programs begin a file with a mark of its encoding."""
    write(tmp_path, {"b.txt": "\ufeff\n\nOne.\nTwo.\n \nThree.".encode()})
    assert list(read_documents(tmp_path / "b.txt", True)) == ["One.\nTwo.", "Three."]
    assert list(read_documents(tmp_path / "b.txt", False)) == ["One.\nTwo.\n \nThree."]


def test_split_of_gives_train_eight_tenths_and_the_others_one_each():
    """Within four standard deviations of 2,000 draws."""
    sizes = collections.Counter(split_of(f"document {i}", 0) for i in range(2_000))
    assert sizes["train"] == pytest.approx(1_600, abs=72)
    assert sizes["validation"] == pytest.approx(200, abs=54)
    assert sizes["test"] == pytest.approx(200, abs=54)
    by_seed = {tuple(split_of(f"{i}", seed) for i in range(50)) for seed in range(3)}
    assert len(by_seed) == 3


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


def test_a_sentence_that_is_too_long_is_divided_evenly():
    sentence = list(range(10))
    assert split_long(sentence, 10) == [sentence]
    assert split_long(sentence, 4) == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


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
