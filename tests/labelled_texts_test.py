"""Labelled texts: a user's own CSV and TSV files."""

import numpy as np
import pytest

from lra_tasks.split import DataError
from lra_tasks.task import get_task
from tests.archive_server import load_all, texts_of, write

LINES = [f'{i},"Hello, ""you"" {i}",{("ham", "spam")[i % 3 == 0]}' for i in range(90)]
TRAIN = "\n".join(["id,text,label", *LINES]).encode()
TSV = b'label\ttext\nspam\tHe said "no\nham\tyes, \n'


def labelled(folder, **options):
    options = {"labels": "ham,spam", "max_length": 32} | options
    return get_task("labelled_texts", source_dir=str(folder), **options)


def test_make_splits_draws_what_has_no_file(tmp_path):
    write(tmp_path, {"train.csv": TRAIN, "notes.csv": b"never read"})
    task = labelled(tmp_path)
    splits = load_all(task, tmp_path / "data")
    assert [split.num_examples for split in splits] == [73, 8, 9]
    found = dict(pair for split in splits for pair in texts_of(task, split))
    assert found == {f'Hello, "you" {i}': int(i % 3 == 0) for i in range(90)}


@pytest.mark.parametrize("tokenizer", [None, "byte"])
def test_make_splits_takes_files_of_validation_and_test(tmp_path, tokenizer):
    files = {"train.csv": TRAIN, "validation.tsv": TSV, "test.tsv": TSV}
    write(tmp_path, files)
    with pytest.raises(DataError, match="no example of validation is left"):
        load_all(labelled(tmp_path), tmp_path / "data")
    write(tmp_path, {"validation.tsv": TSV.replace(b"no", b"maybe")})
    task = labelled(tmp_path, tokenizer=tokenizer)
    train, validation, test = load_all(task, tmp_path / "data")
    assert [x.num_examples for x in (train, validation, test)] == [90, 1, 2]
    shown = 'He said "no' if tokenizer is None else '[CLS] He said "no [SEP]'
    assert texts_of(task, test)[0] == (shown, 1)
    assert test.labels.tolist() == [1, 0]
    assert test.inputs.dtype == (np.uint8 if tokenizer is None else np.uint16)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "0,1"}, r"train.csv: its labels are ham,spam, not 0,1"),
        ({"labels": "ham"}, "labels must be two or more, as 'ham,spam', not 'ham'"),
        ({"text_column": "body"}, "train.csv has no column body"),
        ({"source_dir": "other"}, r"source_dir .* must hold train.csv"),
    ],
)
def test_labelled_texts_refuses_what_does_not_fit_the_file(tmp_path, options, message):
    write(tmp_path, {"train.csv": TRAIN})
    options = {"source_dir": str(tmp_path), "labels": "ham,spam"} | options
    with pytest.raises(DataError, match=message):
        get_task("labelled_texts", **options).load("train", tmp_path / "data")
