"""The ListOps task: its splits, the released files, its floors."""

import numpy as np
import pytest

from lra_tasks.listops import ListOps
from lra_tasks.listops_language import encode
from lra_tasks.split import DataError, Split
from tests.archive_server import load_all

QUICK = {
    "max_length": 64,
    "min_length": 10,
    "num_train": 997,
    "num_validation": 101,
    "num_test": 211,
}
RELEASED = {
    "basic_train.tsv": "Source\tTarget\n( ( ( [MAX 3 ) 4 ) ] )\t4\n[MIN 1 2 ]\t1\n",
    "basic_val.tsv": "Source\tTarget\n( ( ( [SM 9 ) 9 ) ] )\t8\n",
    "basic_test.tsv": "Source\tTarget\n( ( ( [MED 1 ) 4 ) ] )\t2\n",
}


@pytest.fixture
def released(tmp_path):
    for name, content in RELEASED.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def split_of(*examples):
    inputs = np.zeros((len(examples), 20), np.uint8)
    for row, (source, _) in zip(inputs, examples, strict=True):
        ids = encode(source)
        row[: len(ids)] = ids
    lengths = (inputs > 0).sum(axis=1).astype(np.int32)
    return Split(inputs, lengths, np.array([label for _, label in examples], np.int32))


def test_splits_have_their_sizes_and_no_expression_in_common(tmp_path):
    splits = load_all(ListOps(**QUICK), tmp_path)
    assert [split.num_examples for split in splits] == [997, 101, 211]
    assert all(split.inputs.shape[1] == 64 for split in splits)
    rows = {row.tobytes() for split in splits for row in split.inputs}
    assert len(rows) == 997 + 101 + 211
    other = ListOps(**QUICK, seed=1).load("test", tmp_path)
    assert other.content_hash() != splits[2].content_hash()


def test_released_files_are_read(released, tmp_path):
    task = ListOps(source_dir=str(released), max_length=64)
    splits = load_all(task, tmp_path / "data")
    assert [split.labels.tolist() for split in splits] == [[4, 1], [8], [2]]
    assert splits[0].lengths.tolist() == [4, 4]
    np.testing.assert_array_equal(splits[0].inputs[0, :4], encode("[MAX 3 4 ]"))


def test_released_splits_have_no_expression_in_common(released, tmp_path, capsys):
    with (released / "basic_train.tsv").open("a") as file:
        file.write("( ( ( [SM 9 ) 9 ) ] )\t8\n")
    task = ListOps(source_dir=str(released), max_length=64)
    assert task.load("train", tmp_path / "data").labels.tolist() == [4, 1]
    assert "listops: 1 examples left out of train" in capsys.readouterr().err


def test_what_does_not_count_for_released_files_makes_no_other_dataset(tmp_path):
    plain = ListOps(source_dir=str(tmp_path))
    same = ListOps(source_dir=str(tmp_path), seed=1, num_train=50, max_depth=3)
    assert plain.folder(tmp_path) == same.folder(tmp_path)
    others = (ListOps(), ListOps(seed=1), ListOps(source_dir=str(tmp_path / "other")))
    assert len({task.folder(tmp_path) for task in (plain, *others)}) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Source\tTarget\n", "has no examples"),
        ("Target\tSource\n[MAX 3 4 ]\t4\n", "line 1: the header"),
        ("Source\tTarget\n[MAX 3 4 ]\t4\n[MAX 3 4 ]\n", "line 3: 1 columns"),
        ("Source\tTarget\n[MAX 3 4 ]\t14\n", "line 2: the target '14'"),
        ("Source\tTarget\n[MAX 3 4 ]\t3\n", "line 2: the target is 3, but .* 4$"),
        ("Source\tTarget\n[MAX 3 4\t4\n", "line 2: 1 closing brackets missing"),
        ("Source\tTarget\n[MAX 3 x ]\t4\n", "line 2: token 2"),
        ("Source\tTarget\n[MAX" + " 1" * 63 + " ]\t1\n", "line 2: 65 tokens, above"),
        ("Source\tTarget\n[MAX 3 \xff ]\t4\n", "line 2: .* can't decode byte 0xff"),
        (None, "basic_val.tsv is missing"),
    ],
)
def test_what_is_wrong_in_a_released_file(released, tmp_path, content, message):
    path = released / "basic_val.tsv"
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    task = ListOps(source_dir=str(released), max_length=64)
    with pytest.raises(DataError, match=message) as caught:
        task.load("train", tmp_path / "data")
    assert str(path) in str(caught.value)
    assert not list((tmp_path / "data").rglob("*.json"))


def test_floors_by_hand():
    train = split_of(
        ("[MAX 1 2 ]", 7),  # the floors never look whether a label is right
        ("[MAX 1 2 ]", 7),
        ("[MIN 1 2 ]", 3),
        ("[MIN 1 2 ]", 3),
        ("[MIN 1 2 ]", 5),
        ("[SM 1 2 ]", 7),
    )  # most frequent: 7 over all; MAX 7, MIN 3, SM 7, MED unseen and so 7
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
