"""A user's own tables of labelled texts: which files are read, and as what."""

import numpy as np
import pytest

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
TSV = b'label\ttext\nspam\tHe said "no\nham\tyes, \n'


def labelled(folder, max_length=32, **options):
    return get_task(
        "labelled_texts",
        source_dir=str(folder),
        labels="ham,spam",
        max_length=max_length,
        **options,
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


def test_labelled_texts_refuses_a_line_with_too_many_columns(tmp_path):
    write(tmp_path, {"train.csv": TRAIN + b"\n91,Hello, you,ham"})
    with pytest.raises(DataError, match=r"a line of .*train\.csv has too many columns"):
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
    test = splits[2]
    assert test.labels.tolist() == [1, 0]
    assert test.inputs.dtype == dtype
    assert texts_of(task, test)[0] == (text, 1)


def test_labelled_texts_says_which_tables_it_does_not_read(tmp_path, capsys):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"", "._train.csv": b"\0\5\x16"})
    labelled(tmp_path).load("train", tmp_path / "data")
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/notes.csv is not read: it is named for no split"
    ]

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
