"""A user's own tables of labelled texts: which files are read, and as what."""

import re
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.task import get_task
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.splits import load_all, texts_of


def labelled_csv(num_lines):
    """A table of texts with commas and quotes; every third text is spam."""
    lines = ["id,text,label"]
    for number in range(num_lines):
        label = "spam" if number % 3 == 0 else "ham"
        lines.append(f'{number},"Hello, ""you"" {number}",{label}')
    return "\n".join(lines).encode()


TRAIN = labelled_csv(90)
BYTES = "0 padding, then the 256 bytes: 1 + byte"
TSV = b'label\ttext\nspam\tHe said "no\nham\tyes, \n'


def labelled(folder, max_length=32, **options) -> Any:
    return get_task(
        "labelled_texts", source_dir=str(folder), max_length=max_length, **options
    )


def test_labelled_texts_draws_what_has_no_file(tmp_path):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"never read"})
    task = labelled(tmp_path)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [73, 8, 9]
    label_of_text = {}
    for split in splits:
        label_of_text.update(texts_of(task, split))
    assert label_of_text == {f'Hello, "you" {i}': int(i % 3 == 0) for i in range(90)}


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["spam", "ham"], ["ham", "spam"]),
        ([10, 9, 0], ["0", "9", "10"]),
        # Each of many classes has many lines.
        (range(25), [str(number) for number in range(25)]),
        (['"York, NY"', '" Rome"'], ["Rome", "York, NY"]),
    ],
)
def test_labelled_texts_finds_the_classes_of_train(tmp_path, labels, names):
    lines = [
        f"text {i} of {number},{label}"
        for i in range(20)
        for number, label in enumerate(labels)
    ]
    write(tmp_path, {"train.csv": "\n".join(["text,label", *lines]).encode()})
    task = labelled(tmp_path)
    assert task.class_names == names
    task.load("train", tmp_path / "data")
    info: Any = tfds.builder_from_directory(task.folder(tmp_path / "data")).info
    assert info.features["label"].names == names
    # A run is read where its data are not.
    elsewhere = get_task("labelled_texts", labels=task.labels)
    assert elsewhere.class_names == names


def test_labelled_texts_takes_classes_in_the_order_that_is_given(tmp_path):
    write(tmp_path, {"train.csv": TRAIN})
    assert labelled(tmp_path, labels="spam, ham").class_names == ["spam", "ham"]
    cities = labelled(tmp_path, labels='Rome, "York, NY"')
    assert cities.class_names == ["Rome", "York, NY"]
    with pytest.raises(DataError, match="its labels are ham,spam, not spam,egg: corr"):
        labelled(tmp_path, labels="spam,egg").load("train", tmp_path / "data")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["one,ham", "two,ham"],
            "two or more classes are needed, .*csv or .*; there is 'ham'",
        ),
        (["one,ham", "two,"], "train.csv has 1 lines without a label: fill them in"),
        ([f"a,{i}.5" for i in range(21)], "label has 21 different labels in 21 lines"),
        (["one,ham", 'two,"a\nb"'], r"the class 'a\\nb' has a line break: rename it"),
    ],
)
def test_labelled_texts_refuses_a_column_of_no_classes(tmp_path, lines, message):
    write(tmp_path, {"train.csv": "\n".join(["text,label", *lines]).encode()})
    with pytest.raises(DataError, match=message):
        labelled(tmp_path)


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"max_length": 96}, None),
        ({"max_length": 80, "num_bytes": 9}, None),
        ({"max_length": 72}, "cuts 29% of them, --config.task.max_length=96 would cut"),
        ({"max_length": 256}, "makes 80% of a batch padding, .*max_length=96 holds 95"),
        # One text of 101 is cut.
        ({"max_length": 128}, "makes 60% of a batch padding, .*max_length=96 holds 95"),
        (
            {"max_length": 256, "tokenizer": "byte"},
            "makes 79% of a batch padding, .*max_length=104 holds 95",
        ),
    ],
)
def test_labelled_texts_says_which_max_length_fits(tmp_path, capsys, options, advice):
    """Of 1 to 100 bytes and one of 200; a letter of every second text has two."""
    lines = [f"{'x' * n},1" for n in range(1, 100, 2)]
    lines += [f"{'é' * n},0" for n in (*range(1, 51), 100)]
    write(tmp_path, {"train.csv": "\n".join(["text,label", *lines]).encode()})
    labelled(tmp_path, **options).load("train", tmp_path / "data")
    [line, *_] = capsys.readouterr().err.splitlines()
    facts, _, said = line.partition("; ")
    more = 3 if "tokenizer" in options else 0  # [CLS], [SEP] and the first blank
    for number in (51, 96, 200):
        assert f" {number + more}" in facts
    assert re.search(advice, said) if advice else not said


def test_labelled_texts_says_that_a_length_holds_all(tmp_path, capsys):
    lines = [f"{'x' * n},{n % 2}" for n in range(1, 24)]
    write(tmp_path, {"train.csv": "\n".join(["text,label", *lines]).encode()})
    labelled(tmp_path, max_length=64).load("train", tmp_path / "data")
    message = "--config.task.max_length=24 holds all the texts in less time"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "separator"), [("train.csv", "commas"), ("train.tsv", "tabs")]
)
@pytest.mark.parametrize("labels", [None, "ham,spam"])
def test_labelled_texts_says_how_columns_are_divided(tmp_path, name, separator, labels):
    write(tmp_path, {name: b"text;label\none;ham\ntwo;spam\n"})
    message = (
        f"has no column label, text: .* divided by {separator}, got 'text;label'; "
        "other names are --config.task.text_column and --config.task.label_column"
    )
    with pytest.raises(DataError, match=message):
        labelled(tmp_path, labels=labels).load("train", tmp_path / "data")


def test_labelled_texts_refuses_a_line_with_too_many_columns(tmp_path):
    write(tmp_path, {"train.csv": TRAIN + b"\n91,Hello, you,ham"})
    with pytest.raises(DataError, match=r"train\.csv, line 92 has too many columns"):
        labelled(tmp_path).load("train", tmp_path / "data")


def test_labelled_texts_refuses_empty_texts(tmp_path):
    write(tmp_path, {"train.csv": TRAIN + b"\n91,,ham\n92,  ,ham"})
    with pytest.raises(DataError, match=r"train\.csv has 2 empty texts: remove"):
        labelled(tmp_path).load("train", tmp_path / "data")


def test_labelled_texts_refuses_a_folder_without_train(tmp_path):
    with pytest.raises(DataError, match=r"source_dir .* must hold train.csv"):
        labelled(tmp_path / "other").load("train", tmp_path)


@pytest.mark.parametrize(
    ("tokenizer", "text", "dtype"),
    [
        (None, 'He said "no', np.uint8),
        ("byte", '[CLS] He said "no [SEP]', np.uint16),
    ],
)
def test_labelled_texts_takes_files_of_validation_and_test(
    tmp_path, tokenizer, text, dtype
):
    write(tmp_path, {"train.csv": TRAIN, "validation.tsv": TSV, "test.tsv": TSV})
    with pytest.raises(DataError, match="no example of validation is left"):
        load_all(labelled(tmp_path), tmp_path / "data")

    different = TSV.replace(b"no", b"maybe") + b"ham\ta\tb\n"
    write(tmp_path, {"validation.tsv": different})
    task = labelled(tmp_path, tokenizer=tokenizer)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [90, 1, 2]
    names = "0 [PAD], 1 [UNK], 2 [CLS], 3 [SEP], 4 [MASK], then the 256 bytes: 5 + byte"
    assert task.token_ids == (names if tokenizer else BYTES)
    test = splits[2]
    assert test.labels.tolist() == [1, 0]
    assert test.inputs.dtype == dtype
    assert texts_of(task, test)[0] == (text, 1)


def test_labelled_texts_says_which_tables_it_does_not_read(tmp_path, capsys):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"", "._train.csv": b"\0\5\x16"})
    labelled(tmp_path).load("train", tmp_path / "data")
    [first, *_] = capsys.readouterr().err.splitlines()
    assert first == f"{tmp_path}/notes.csv is not read: it is named for no split"

    # These two are files that macOS adds.
    folder = labelled(tmp_path).folder()
    write(tmp_path, {".DS_Store": b"", "._notes.csv": b""})
    assert labelled(tmp_path).folder() == folder


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.csv", "val.csv"], "val.csv is not read: name it validation.csv, or"),
        (["train.tsv", "valid.csv"], "valid.csv is not read: name it validation.csv"),
        (["train.csv", "dev.tsv"], "dev.tsv is not read: name it validation.tsv, or"),
        (["train.csv", "Test.csv"], "Test.csv is not read: name it test.csv, or"),
        (["train.csv", "train.tsv"], "train.csv and .*/train.tsv are one split: rem"),
        (["training.csv"], r"source_dir \(.*\) must hold train.csv or train.tsv"),
    ],
)
def test_labelled_texts_ignores_no_split_without_a_word(tmp_path, names, message):
    write(tmp_path, dict.fromkeys(names, b"text,label\nfine,ham\n"))
    with pytest.raises(DataError, match=message):
        labelled(tmp_path).load("train", tmp_path / "data")


def test_encode_reads_a_text_as_a_table_is_read(tmp_path):
    test_csv = 'text,label\n"\xa0 fine\r\n",ham'.encode()
    write(tmp_path, {"train.csv": TRAIN, "test.csv": test_csv})
    for tokenizer in (None, "byte"):
        task = labelled(tmp_path, tokenizer=tokenizer)
        test = task.load("test", tmp_path / "data")
        for text in ("fine", " fine\n", "\xa0 fine\r\n"):
            inputs, lengths = task.encode([text])
            np.testing.assert_array_equal(inputs, test.inputs)
            np.testing.assert_array_equal(lengths, test.lengths)
