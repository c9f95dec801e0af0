"""Labelled texts: a user's own CSV and TSV files."""

import numpy as np
import pytest

from lra_tasks.split import DataError
from lra_tasks.task import get_task
from tests.archive_server import load_all, write

LINES = [f'{i},"Hello, ""you"" {i}",{("ham", "spam")[i % 3 == 0]}' for i in range(90)]
TRAIN = "\n".join(["id,text,label", *LINES]).encode()


def labelled(folder, **options):
    options = {"labels": "ham,spam", "max_length": 32} | options
    return get_task("labelled_texts", source_dir=str(folder), **options)


def test_make_splits_draws_what_has_no_file(tmp_path):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"never read"})
    task = labelled(tmp_path)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [73, 8, 9]
    found = {}
    for split in splits:
        for row, n, label in zip(
            split.inputs, split.lengths, split.labels, strict=True
        ):
            found[task.decode(row[:n])] = task.label_names[label]
    assert found == {
        f'Hello, "you" {i}': ("ham", "spam")[i % 3 == 0] for i in range(90)
    }


@pytest.mark.parametrize("tokenizer", [None, "byte"])
def test_files_of_validation_and_test_are_taken(tmp_path, tokenizer):
    test = b'label\ttext\nspam\tHe said "no\nham\tyes, \n'
    write(tmp_path, {"train.csv": TRAIN, "validation.tsv": test, "test.tsv": test})
    with pytest.raises(DataError, match="no example of validation is left"):
        load_all(labelled(tmp_path), tmp_path / "data")
    write(
        tmp_path,
        {
            "validation.tsv": test.replace(b"e", b"a").replace(
                b"labal\ttaxt", b"label\ttext"
            )
        },
    )
    task = labelled(tmp_path, tokenizer=tokenizer)
    train, validation, test = load_all(task, tmp_path / "data")
    assert [x.num_examples for x in (train, validation, test)] == [90, 2, 2]
    assert test.labels.tolist() == [1, 0]
    shown = 'He said "no' if tokenizer is None else '[CLS] He said "no [SEP]'
    assert task.decode(test.inputs[0, : test.lengths[0]]) == shown
    assert test.inputs.dtype == (np.uint8 if tokenizer is None else np.uint16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "0,1"}, r"train.csv: its labels are ham,spam, not 0,1"),
        ({"labels": "ham"}, "labels must be two or more, as 'ham,spam', not 'ham'"),
        ({"text_column": "body"}, "train.csv, line 1: no column body"),
    ],
)
def test_what_does_not_fit_the_file_is_one_line(tmp_path, options, message):
    write(tmp_path, {"train.csv": TRAIN})
    with pytest.raises(DataError, match=message):
        labelled(tmp_path, **options).load("train", tmp_path / "data")
    with pytest.raises(DataError, match=r"source_dir .* must hold train.csv"):
        labelled(tmp_path / "other").load("train", tmp_path / "data")
