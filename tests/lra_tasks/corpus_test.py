"""Corpus: documents to pairs of parts, in order or swapped, on sub-words or bytes."""

import dataclasses
import json
import re
import threading

import numpy as np
import pytest

from lra_tasks import subwords
from lra_tasks.documents import SENTENCE, make_examples, read_documents, split_of
from lra_tasks.errors import DataError
from lra_tasks.rows_on_disk import Rows
from lra_tasks.task import get_task
from tests.commands import ROOT
from tests.lra_tasks.archive_server import load_all, texts_of, write

DATA = (ROOT / "DATA.md").read_text()

SEP = 3
MODEL = b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'


DRAW = np.random.default_rng(0)
DOCUMENTS = [
    " ".join(f"Nº{n}, {i}: {'ab ' * int(DRAW.integers(1, 9))}end." for i in range(12))
    for n in range(60)
]
FILES = {f"{i % 7}/{i}.txt": text.encode() for i, text in enumerate(DOCUMENTS)}


@pytest.fixture
def texts(tmp_path):
    write(tmp_path / "text", FILES)
    (tmp_path / "text" / "3").rename(tmp_path / "elsewhere")
    (tmp_path / "text" / "3").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "text"


def corpus(folder, **options):
    small = {"max_length": 96, "tokenizer": "byte"}
    return get_task("corpus", source_dir=str(folder), **small | options)


def parts_in_order(task, split):
    """Both parts of each row of a split, in the order of the document."""
    for text, label in texts_of(task, split):
        start, first, second, end = text.replace("[CLS]", "[SEP]").split("[SEP]")
        assert (start, end) == ("", "")
        first, second = first.strip(), second.strip()
        yield f"{first} {second}" if label else f"{second} {first}"


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_parts_follow_one_another_and_label_says_the_order(tmp_path, texts, tokenizer):
    task = corpus(texts, tokenizer=tokenizer, vocab_size=300)
    documents_of = []
    for split in load_all(task, tmp_path):
        documents_of.append(set())
        for joined in parts_in_order(task, split):
            (document,) = [d for d in DOCUMENTS if joined in d]
            documents_of[-1].add(document)
        assert set(np.unique(split.labels)) == {0, 1}
    assert set.union(*documents_of) == set(DOCUMENTS)
    assert sum(map(len, documents_of)) == len(DOCUMENTS)
    assert len(documents_of[0]) > 40


def test_passages_that_documents_share_are_in_one_split(tmp_path, capsys):
    """A licence ends every document; its passages are alike, wherever they are cut."""
    licence = " ".join(f"Clause {i} says that you may copy it." for i in range(40))
    texts = (f"{text} {licence}" for text in DOCUMENTS)
    files = {f"{i}.txt": text.encode() for i, text in enumerate(texts)}
    write(tmp_path / "text", files)
    task = corpus(tmp_path / "text", max_length=256)
    train, validation, test = (
        set(parts_in_order(task, split)) for split in load_all(task, tmp_path)
    )
    assert not train & (validation | test)
    assert not validation & test
    assert "Clause" in str(test)
    assert "examples left out of train: repeated" in capsys.readouterr().err


def test_sentences_keep_all_their_characters():
    text = 'He said "go." (He left.)\nThen v. 1.5 came! “Why?” asked he...  No end'
    found = ['He said "go."', "(He left.)", "Then v.", "1.5 came!", "“Why?”"]
    assert SENTENCE.findall(text) == [*found, "asked he...", "No end"]


def test_rows_stay_on_disk_and_are_the_same_on_every_machine(tmp_path, texts):
    task = corpus(texts)
    train = task.load("train", tmp_path)
    assert isinstance(train.inputs, Rows)
    assert train.content_hash[:16] == "62965875defaf8ac"  # copied from a run
    rows = train.inputs[:]
    assert (rows.shape[1], rows.dtype) == (96, np.uint16)
    np.testing.assert_array_equal(train.inputs[[3, 0, 3]], rows[[3, 0, 3]])
    np.testing.assert_array_equal(train.inputs[5], rows[5])
    assert ((rows == SEP).sum(1) == 2).all()
    assert ((rows > 0).sum(1) == train.lengths).all()
    assert train.lengths.mean() > 60
    assert (task.vocab_size, task.mask_token, task.separator) == (261, 4, SEP)
    assert task.special_tokens == (0, 1, 2, 3, 4)


def test_rows_on_disk_are_indexed_as_an_array_is(tmp_path, texts):
    split = corpus(texts).load("train", tmp_path)
    rows, mask = split.inputs[:], split.labels == 1
    numbers = np.array([[-1, 3], [0, 3]], np.int16)
    for index in (mask, mask.tolist(), numbers, -2, np.int64(4), slice(9, None, -2)):
        np.testing.assert_array_equal(split.inputs[index], rows[index])
    np.testing.assert_array_equal([*split.inputs], rows)
    for wrong in (len(rows), [0, -len(rows) - 1], np.array([1.0]), mask[:-1]):
        with pytest.raises(IndexError):
            split.inputs[wrong]


def test_a_split_on_disk_does_what_one_in_memory_does(tmp_path, texts):
    split = corpus(texts).load("train", tmp_path)
    in_memory = dataclasses.replace(split, inputs=split.inputs[:])
    for chosen in (split.labels == 1, slice(5), np.array([2, 2, 0])):
        taken = split.take(chosen)
        assert taken.content_hash == in_memory.take(chosen).content_hash
        assert ((taken.inputs > 0).sum(axis=1) == taken.lengths).all()
    for (tokens, label), (same, expected) in zip(split, in_memory, strict=True):
        np.testing.assert_array_equal(tokens, same)
        assert label == expected
    assert split.example_hashes() == in_memory.example_hashes()


def test_rows_are_prefetched_by_a_thread(tmp_path, texts):
    rows = corpus(texts).load("train", tmp_path).inputs
    expected, read_by, read = rows[:], [], rows.source.__getitems__

    class Source:
        def __getitems__(self, wanted):
            read_by.append(threading.current_thread())
            return read(wanted)

    rows.source = Source()
    rows.prefetch(np.array([5, 3, 8, 1]))
    np.testing.assert_array_equal(rows[[5, 3, 8]], expected[[5, 3, 8]])
    assert read_by
    assert threading.main_thread() not in read_by
    for wanted in ([5, 4], [8, 1]):  # not those that were prefetched last
        np.testing.assert_array_equal(rows[wanted], expected[wanted])
        rows.prefetch(np.array([7, 7]))
    assert read_by.count(threading.main_thread()) == 2


def test_a_file_with_several_paths_is_one_document(texts):
    files = corpus(texts).source_files()
    (texts / "again").symlink_to(texts)
    assert corpus(texts).source_files() == files


def test_the_notes_that_macos_keeps_beside_texts_are_no_documents(tmp_path, texts):
    before = corpus(texts).load("train", tmp_path / "a").content_hash
    notes = {f"{i % 7}/._{i}.txt": b"\0Mac. OS. X." for i in range(60) if i % 7 != 3}
    write(texts, notes)
    assert corpus(texts).load("train", tmp_path / "b").content_hash == before


def test_the_recipe_for_wikipedia_writes_documents_between_blank_lines(tmp_path):
    """DATA.md's, on texts with every kind of blank line."""
    (save,) = re.findall(r"\n(def save.*?)\n\n\n", DATA, re.DOTALL)
    names = {"re": re}
    exec(save, names)
    texts = ["One.\n\nTwo.", "\r\nOne.\r\n \r\n\r\nTwo.\r\n", "One.\r\rTwo.\rThree."]
    names["save"](texts, tmp_path / "a.txt")
    found = [x.split() for x in read_documents(tmp_path / "a.txt", True)]
    assert found == [["One.", "Two."], ["One.", "Two."], ["One.", "Two.", "Three."]]


@pytest.mark.slow
def test_another_run_can_use_the_vocabulary(tmp_path, texts):
    task = corpus(texts, tokenizer="bpe", vocab_size=300)
    train = task.load("train", tmp_path)
    file, moved = task.vocabulary_file(tmp_path), tmp_path / "moved.json"
    moved.write_bytes(file.read_bytes())
    again, same = (corpus(texts, tokenizer=str(x)) for x in (file, moved))
    assert again.vocab_size == task.vocabulary.vocab_size == 300
    assert again.load("train", tmp_path).content_hash == train.content_hash
    assert again.folder() == same.folder()
    write(texts, {f"more/{i}.txt": b"Zebras. Zebus." for i in range(9)})
    run = corpus(texts, tokenizer="bpe", vocab_size=300)
    run.use_tokenizer(str(file))
    with pytest.raises(
        DataError, match=r"other texts .*: restore them, or start a new"
    ):
        run.load("train", tmp_path)


@pytest.mark.parametrize("longest", [20, 60])
def test_lengths_do_not_give_the_order_away(longest):
    """Lengths of any order, up to more than the 30 tokens of half a row."""
    draw, rng = np.random.default_rng(0), np.random.default_rng(1)
    longer, kept, all_tokens, most = {0: [], 1: []}, 0, 0, 0
    for _ in range(2500):
        sizes = draw.integers(0, longest, 12, endpoint=True)
        all_tokens += sizes.sum()
        for *parts, label in make_examples([[5] * n for n in sizes], 64, rng):
            first, second = map(len, parts)
            most = max(most, first + second)
            kept += first + second
            if first != second:
                longer[label].append(first > second)
    assert most == 64 - 3
    assert kept > 0.85 * all_tokens
    for label in (0, 1):
        assert abs(np.mean(longer[label]) - 0.5) < 0.03


def test_the_tokenizer_is_learnt_on_train_alone(tmp_path):
    """Evaluation has much of what train lacks."""
    train = [x for x in DOCUMENTS if split_of(x, 0) == "train"]
    others = ["zqzq zqzq. " * 40 + f"{i}." for i in range(200)]
    others = [x for x in others if split_of(x, 0) != "train"]
    assert {split_of(x, 0) for x in others} == {"validation", "test"}
    texts = enumerate([*train, *others])
    write(tmp_path / "text", {f"{i}.txt": x.encode() for i, x in texts})
    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=300)
    task.load("train", tmp_path)
    subwords.train(train, 300, tmp_path / "alone.json")
    alone = json.loads((tmp_path / "alone.json").read_text())
    learnt = json.loads(task.vocabulary_file(tmp_path).read_text())
    assert set(learnt["model"]["vocab"]) == set(alone["model"]["vocab"])


def test_a_small_corpus_is_learnt_with_the_vocab_size_that_the_error_names(tmp_path):
    write(tmp_path / "text", FILES)
    with pytest.raises(DataError, match="take vocab_size=") as caught:
        corpus(tmp_path / "text", tokenizer="bpe").load("train", tmp_path)
    (learnt,) = re.findall(r"take vocab_size=(\d+), tokenizer=byte", str(caught.value))
    for options in ({"tokenizer": "bpe", "vocab_size": int(learnt)}, {}):
        train = corpus(tmp_path / "text", **options).load("train", tmp_path)
        assert train.num_examples > 40


def test_the_seed_draws_splits_cuts_and_orders(tmp_path, texts):
    """Of the documents in the order of their files; of the splits test comes first."""
    by_seed = []
    for seed in (0, 5):
        task = corpus(texts, seed=seed)
        rng, expected = np.random.default_rng(seed), []
        for path in task.source_files():
            [document] = read_documents(path, False)
            if split_of(document, seed) == "test":
                sentences = task.vocabulary.encode(SENTENCE.findall(document))
                for first, second, label in make_examples(sentences, 96, rng):
                    row = task.vocabulary.row(first, second, max_length=96)
                    expected.append((row, label))
        test = task.load("test", tmp_path)
        rows = zip(test.inputs[:], test.lengths, test.labels, strict=True)
        found = [(list(row[:n]), label) for row, n, label in rows]
        assert found == expected
        by_seed.append(found)
    assert by_seed[0] != by_seed[1]


def test_read_documents_between_blank_lines_or_whole(tmp_path):
    write(tmp_path, {"b.txt": b"\n\nOne.\nTwo.\n \nThree."})
    assert [*read_documents(tmp_path / "b.txt", True)] == ["One.\nTwo.", "Three."]
    assert [*read_documents(tmp_path / "b.txt", False)] == ["One.\nTwo.\n \nThree."]


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
        ({"x.json": MODEL}, "x.json", r"lacks \[PAD\]"),
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
