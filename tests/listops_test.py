"""The ListOps task: its splits, the released files, its floors."""

import numpy as np
import pytest

from lra_tasks.listops import VOCABULARY, ListOps
from lra_tasks.split import DataError, Split
from tests.archive_server import load_all, write

SIZES = {"num_train": 997, "num_validation": 101, "num_test": 211}
RELEASED = {
    "basic_train.tsv": b"Source\tTarget\n( ( ( [MAX 3 ) 4 ) ] )\t4\n[MIN 1 2 ]\t1\n",
    "basic_val.tsv": b"Source\tTarget\n( ( ( [SM 9 ) 9 ) ] )\t8\n",
    "basic_test.tsv": b"Source\tTarget\n( ( ( [MED 1 ) 4 ) ] )\t2\n",
}


def split_of(*examples):
    texts, labels = zip(*examples, strict=True)
    return Split(*ListOps().encode(texts), np.array(labels, np.int32))


def test_vocabulary_is_fixed():
    # Written out again: a checkpoint trained yesterday relies on every place.
    words = "<pad> [MIN [MAX [MED [SM ] 0 1 2 3 4 5 6 7 8 9"
    assert words.split() == list(VOCABULARY)
    (ids,), (n,) = ListOps().encode(["( ( ( [SM 3 ) [MIN 0 9 ] ) ] )"])
    assert ids[:n].tolist() == [4, 9, 1, 6, 15, 5, 5]
    assert ListOps().decode(ids[:n]) == "[SM 3 [MIN 0 9 ] ]"


def test_make_splits_have_their_sizes_and_no_expression_in_common(tmp_path):
    splits = load_all(ListOps(max_length=64, min_tokens=10, **SIZES), tmp_path)
    assert [split.num_examples for split in splits] == [997, 101, 211]
    assert all(split.inputs.shape[1] == 64 for split in splits)
    rows = {row.tobytes() for split in splits for row in split.inputs}
    assert len(rows) == 997 + 101 + 211


def test_released_files_are_read(tmp_path, capsys):
    repeated = RELEASED["basic_train.tsv"] + b"( ( ( [SM 9 ) 9 ) ] )\t8\n"
    write(tmp_path, RELEASED | {"basic_train.tsv": repeated})
    task = ListOps(source_dir=str(tmp_path), max_length=64)
    splits = load_all(task, tmp_path / "data")
    assert "listops: 1 examples left out of train" in capsys.readouterr().err
    assert [split.labels.tolist() for split in splits] == [[4, 1], [8], [2]]
    assert splits[0].lengths.tolist() == [4, 4]
    assert task.decode(splits[0].inputs[0, :4]) == "[MAX 3 4 ]"
    same = ListOps(source_dir=str(tmp_path), max_length=64, seed=1, **SIZES)
    assert task.folder() == same.folder()  # what does not count makes no other data
    other = (ListOps(source_dir=str(tmp_path / "other")), ListOps(), ListOps(seed=1))
    assert len({each.folder() for each in (task, *other)}) == 4
    write(tmp_path, RELEASED)  # another file of the same name is other data
    new = ListOps(source_dir=str(tmp_path), max_length=64)
    assert new.folder() != task.folder()
    assert new.load("train", tmp_path / "data").num_examples == 2
    assert "left out" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not lines of Source<tab>Target"),
        (b"Source\tTarget\n[MAX 3 4 ]\t4.0\n", "has the target '4.0', which is no"),
        (b"Source\tTarget\n[FIRST 3 4 ]\t4\n", r"'\[FIRST' is not a token"),
        (b"Source\tTarget\n[MAX " + b"1 " * 63 + b"]\t1\n", "65 tokens are not from 1"),
    ],
)
def test_a_wrong_released_file_is_named(tmp_path, content, message):
    write(tmp_path, RELEASED | {"basic_val.tsv": content})
    with pytest.raises(DataError, match=f"basic_val.tsv.* {message}"):
        ListOps(source_dir=str(tmp_path), max_length=64).load("train", tmp_path / "x")


def test_floors_by_hand():
    train = split_of(
        ("[MAX 1 2 ]", 7),  # the floors never look whether a label is right
        ("[MAX 1 2 ]", 7),
        ("[MIN 1 2 ]", 3),
        ("[MIN 1 2 ]", 3),
        ("[MIN 1 2 ]", 5),
        ("[MED 1 2 ]", 7),
    )  # most frequent: 7 over all; MAX 7, MIN 3, MED 7
    test = split_of(
        ("[MAX 1 [MIN 9 9 ] ]", 7),  # majority, root; literals say 1
        ("[MIN 4 [MAX 2 5 ] 8 ]", 4),  # literals
        ("[MIN [MAX 2 5 ] [MIN 3 5 ] ]", 3),  # root, and so literals, of which are none
        ("[MED 6 [SM 0 0 ] 9 ]", 7),  # majority, root; and literals, (6 + 9) // 2
        ("5", 5),  # a digit is its own answer
    )
    assert ListOps().floors(train, test) == {
        "majority class": 2 / 5,
        "root operator": 4 / 5,
        "root operator and its literal arguments": 4 / 5,
    }
