"""Corpus: documents to pairs of parts, in order or swapped, on sub-words or bytes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from lra_tasks import subwords
from lra_tasks.corpus import SENTENCE, make_examples, read_documents
from lra_tasks.split import DataError
from lra_tasks.task import get_task
from tests.archive_server import full_disk, load_all, write

pytest.importorskip("tokenizers")

CLS, SEP, FIRST_BYTE = 2, 3, 5


def make_documents(count=60):
    draw = np.random.default_rng(0)
    for number in range(count):
        sentences = [
            f"Nº{number}, {i}: {'ab ' * int(draw.integers(1, 9))}end."
            for i in range(12)
        ]
        yield " ".join(sentences)


DOCUMENTS = list(make_documents())
FILES = {f"{i % 7}/{i}.txt": text.encode() for i, text in enumerate(DOCUMENTS)}


def corpus(folder, **options):
    small = {"max_length": 96, "tokenizer": "byte"}
    return get_task("corpus", source_dir=str(folder), **small | options)


@pytest.mark.parametrize("tokenizer", ["byte", "bpe"])
def test_parts_follow_one_another_and_label_says_in_which_order(tmp_path, tokenizer):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text", tokenizer=tokenizer, vocab_size=300)
    documents_of = []
    for split in load_all(task, tmp_path):
        documents_of.append(set())
        for row, n, label in zip(
            split.inputs, split.lengths, split.labels, strict=True
        ):
            text = task.decode(np.asarray(row[:n])).replace("[CLS]", "[SEP]")
            _, first, second, last = (part.strip() for part in text.split("[SEP]"))
            assert last == ""
            joined = f"{first} {second}" if label else f"{second} {first}"
            (document,) = [d for d in DOCUMENTS if joined in d]
            documents_of[-1].add(document)
    assert set.union(*documents_of) == set(DOCUMENTS)
    assert sum(map(len, documents_of)) == len(DOCUMENTS)
    assert len(documents_of[0]) > 40


def test_rows_that_documents_share_are_in_one_split(tmp_path, capsys):
    """A licence ends every document; windows of it are alike, wherever they are cut."""
    licence = " ".join(f"Clause {i} says that you may copy it." for i in range(40))
    files = {
        f"{i}.txt": f"{text} {licence}".encode() for i, text in enumerate(DOCUMENTS)
    }
    write(tmp_path / "text", files)
    task, found = corpus(tmp_path / "text", max_length=256), []
    for split in load_all(task, tmp_path):
        rows = zip(split.inputs, split.lengths, split.labels, strict=True)
        parts = [
            task.decode(np.asarray(row[1 : n - 1])).split("[SEP]")[:: 2 * label - 1]
            for row, n, label in rows
        ]
        found.append({"".join(each).replace(" ", "") for each in parts})
    assert not found[0] & (found[1] | found[2])
    assert not found[1] & found[2]
    assert "Clause" in str(found[2])
    assert "examples left out of train: repeated" in capsys.readouterr().err


def test_sentences_keep_all_their_characters():
    text = 'He said "go." (He left.)\nThen v. 1.5 came! “Why?” asked he...  No end'
    found = ['He said "go."', "(He left.)", "Then v.", "1.5 came!", "“Why?”"]
    assert SENTENCE.findall(text) == [*found, "asked he...", "No end"]


def test_rows_are_as_of_bert(tmp_path):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text")
    train = task.load("train", tmp_path)
    assert train.inputs.shape[1] == 96
    assert (train.inputs.dtype, train.labels.dtype) == (np.uint16, np.int32)
    assert isinstance(train.inputs, np.memmap)
    assert (train.inputs[:, 0] == CLS).all()
    assert ((train.inputs == SEP).sum(1) == 2).all()
    assert (train.inputs[np.arange(len(train.inputs)), train.lengths - 1] == SEP).all()
    assert ((train.inputs > 0).sum(1) == train.lengths).all()
    assert train.lengths.mean() > 60
    assert set(np.unique(train.labels)) == {0, 1}
    assert (task.vocab_size, task.mask_token, task.separator) == (261, 4, SEP)
    assert task.special_tokens == (0, 1, 2, 3, 4)


PROCESS = """
import sys
from lra_tasks.task import get_task
options = {"source_dir": sys.argv[1], "max_length": 96, "vocab_size": 300}
task = get_task("corpus", **options)
print(task.load("train", sys.argv[2]).content_hash, task.vocabulary.digest)
"""


def test_every_process_makes_the_same_and_another_run_can_use_the_vocabulary(tmp_path):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=300)
    train = task.load("train", tmp_path)
    command = [sys.executable, "-c", PROCESS, tmp_path / "text", tmp_path / "other"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [train.content_hash, task.vocabulary.digest]
    file = task.vocabulary_file(tmp_path)
    again = corpus(tmp_path / "text", tokenizer=str(file))
    assert again.vocab_size == task.vocabulary.vocab_size == 300
    assert again.load("train", tmp_path).content_hash == train.content_hash
    moved = tmp_path / "moved.json"
    moved.write_bytes(file.read_bytes())
    assert corpus(tmp_path / "text", tokenizer=str(moved)).folder() == again.folder()


def test_a_corpus_with_too_few_sub_words_says_how_many_there_are(tmp_path):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=9_000)
    with pytest.raises(
        DataError, match=r"has only \d+ sub-words.*vocab_size="
    ) as error:
        task.load("train", tmp_path)
    size = int(str(error.value).partition("vocab_size=")[2].partition(",")[0])
    fits = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=size)
    fits.load("train", tmp_path)
    assert fits.vocabulary.vocab_size == size


@pytest.mark.parametrize("longest", [20, 60])
def test_lengths_do_not_give_the_order_away(longest):
    """Lengths of any order, up to more than the 30 tokens of half a row."""
    draw, rng = np.random.default_rng(0), np.random.default_rng(1)
    longer, kept, all_tokens = {0: [], 1: []}, 0, 0
    for _ in range(2500):
        sizes = draw.integers(0, longest, 12, endpoint=True)
        all_tokens += sizes.sum()
        sentences = [[FIRST_BYTE] * size for size in sizes]
        for *parts, label in make_examples(sentences, 64, rng):
            first, second = map(len, parts)
            assert first + second <= 64 - 3
            kept += first + second
            if first != second:
                longer[label].append(first > second)
    assert kept > 0.85 * all_tokens
    for label in (0, 1):
        assert abs(np.mean(longer[label]) - 0.5) < 0.03


def test_a_document_is_a_file_or_stands_between_blank_lines(tmp_path):
    write(tmp_path, {"b.txt": b"\n\nOne.\nTwo.\n \nThree.", "a.txt": b"", "c.md": b"x"})
    assert [*read_documents(tmp_path, "*.txt", True)] == ["One.\nTwo.", "Three."]
    assert [*read_documents(tmp_path, "*.txt", False)] == ["One.\nTwo.\n \nThree."]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.txt": b"One. Two. " * 99}, "1 documents .* documents=blank_lines"),
        ({f"{i}.txt": b"no end %d" % i for i in range(60)}, "has two sentences"),
        ({"a.txt": b"caf\xe9 au lait."}, r"a\.txt is not UTF-8 text"),
        ({"a.txt": b"zip\0file."}, r"a\.txt is not text: it has a zero byte"),
        ("pipe", r"a\.txt is not a regular file"),
    ],
)
def test_what_is_no_corpus(tmp_path, files, message):
    (tmp_path / "text").mkdir()
    if files == "pipe":
        os.mkfifo(tmp_path / "text" / "a.txt")
    else:
        write(tmp_path / "text", files)
    with pytest.raises(DataError, match=message) as caught:
        corpus(tmp_path / "text").load("train", tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.glob("corpus/*/*")] == ["lock"]


@pytest.mark.parametrize("pattern", ["", ".", "/texts/*.txt", "../*.txt", "a**/*.txt"])
def test_a_pattern_of_no_names_below_the_folder_is_refused(tmp_path, pattern):
    with pytest.raises(DataError, match="names below source_dir"):
        corpus(tmp_path, pattern=pattern)


def test_damage_is_noticed(tmp_path):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=300)
    task.load("train", tmp_path)
    for name in ("train.safetensors", "tokenizer.json"):
        path = task.folder(tmp_path) / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        subwords.open_vocabulary.cache_clear()
        with pytest.raises(DataError, match="delete that folder and run again"):
            task.load("train", tmp_path)
        path.write_bytes(content)


MODEL = {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "is not a tokenizer.json"),
        (None, "the tokenizer is byte or a tokenizer.json, not"),
        (json.dumps(MODEL).encode(), r"has not the tokens \[PAD\]"),
    ],
)
def test_what_is_no_vocabulary(tmp_path, content, message):
    write(tmp_path, {"x.json": content})
    with pytest.raises(DataError, match=message):
        corpus(tmp_path, tokenizer=str(tmp_path / "x.json"))


@pytest.mark.parametrize(
    ("num_bytes", "cut"), [(2**10, {"tokenizer.json"}), (2**13, set())], ids=str
)
def test_a_full_disk_is_one_line_and_no_dataset(tmp_path, num_bytes, cut):
    write(tmp_path / "text", FILES)
    task = corpus(tmp_path / "text", tokenizer="bpe", vocab_size=300)
    with full_disk(num_bytes), pytest.raises(OSError, match=str(tmp_path)) as caught:
        task.load("train", tmp_path)
    assert "\n" not in str(caught.value)
    (options,) = (tmp_path / "corpus").iterdir()
    assert [path.name for path in options.iterdir()] == ["lock"]
    assert task.load("train", tmp_path).num_examples
    large = {x.name for x in options.glob("*/*") if x.stat().st_size > num_bytes}
    assert large >= {"train.safetensors"}
    assert large & {"tokenizer.json"} == cut
