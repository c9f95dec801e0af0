"""ListOps: the vocabulary, splits, released files and floors."""

import os

import pytest

from lra_tasks.errors import DataError
from lra_tasks.listops import ListOps
from lra_tasks.listops_generator import VOCABULARY
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.splits import load_all

SIZES = {"num_train": 997, "num_validation": 101, "num_test": 211}
RELEASED = {
    "basic_train.tsv": b"Source\tTarget\n( ( ( [MAX 3 ) 4 ) ] )\t4\n[MIN 1 2 ]\t1\n",
    "basic_val.tsv": b"Source\tTarget\n( ( ( [SM 9 ) 9 ) ] )\t8\n",
    "basic_test.tsv": b"Source\tTarget\n( ( ( [MED 1 ) 4 ) ] )\t2\n",
}


def released_task(folder, **options):
    return ListOps(source_dir=str(folder), max_length=64, **options)


def split_of(*examples):
    texts, labels = zip(*examples, strict=True)
    return ListOps().encode_split(texts, labels)


def test_vocabulary_is_fixed():
    # It is written out again, since a checkpoint trained yesterday relies on each id.
    tokens = "<pad> [MIN [MAX [MED [SM ] 0 1 2 3 4 5 6 7 8 9"
    assert " ".join(VOCABULARY) == tokens


def test_encode_ignores_parentheses():
    inputs, lengths = ListOps().encode(["( ( ( [SM 3 ) [MIN 0 9 ] ) ] )"])
    tokens = inputs[0, : lengths[0]]
    assert tokens.tolist() == [4, 9, 1, 6, 15, 5, 5]
    assert ListOps().decode(tokens) == "[SM 3 [MIN 0 9 ] ]"


@pytest.mark.parametrize(
    "text", ["[MAX 3 [MIN 8 5 ]", "[MAX 3 ] ]", "3 4", "] [MAX 3 4", "[MAX 3 4 ] 5"]
)
def test_encode_refuses_what_is_not_one_expression(text):
    with pytest.raises(DataError) as caught:
        ListOps().encode(["[MAX 3 4 ]", text])
    assert str(caught.value) == (
        f"listops: text 2, {text!r}, is not one expression: close each operator once, "
        "as in '[MAX 3 [MIN 8 5 ] ]'"
    )


def test_make_splits_have_their_sizes_and_no_expression_in_common(tmp_path):
    splits = load_all(ListOps(max_length=64, min_tokens=10, **SIZES), tmp_path)
    assert [split.num_examples for split in splits] == [997, 101, 211]
    assert all(split.inputs.shape[1] == 64 for split in splits)
    rows = {row.tobytes() for split in splits for row in split.inputs}
    assert len(rows) == 997 + 101 + 211


def test_released_files_are_read(tmp_path, capsys):
    repeated = RELEASED["basic_train.tsv"] + b"( ( ( [SM 9 ) 9 ) ] )\t8\n"
    write(tmp_path, RELEASED | {"basic_train.tsv": repeated})
    task = released_task(tmp_path)
    splits = load_all(task, tmp_path / "data")
    stderr = capsys.readouterr().err
    assert "listops: 1 examples left out of train" in stderr
    for name, size, released_size in (
        ("train", "3", "96,000"),
        ("val", "1", "2,000"),
        ("test", "1", "2,000"),
    ):
        assert (
            f"{tmp_path}/basic_{name}.tsv: {size} expressions, the release has "
            f"{released_size}: results are not comparable\n"
        ) in stderr
    assert [split.labels.tolist() for split in splits] == [[4, 1], [8], [2]]
    assert splits[0].lengths.tolist() == [4, 4]
    assert task.decode(splits[0].inputs[0, :4]) == "[MAX 3 4 ]"


def test_options_of_the_generator_do_not_change_the_folder_of_released_files(tmp_path):
    write(tmp_path, RELEASED)
    task = released_task(tmp_path)
    assert released_task(tmp_path, seed=1, **SIZES).folder() == task.folder()
    other_data = (released_task(tmp_path / "other"), ListOps(), ListOps(seed=1))
    assert len({each.folder() for each in (task, *other_data)}) == 4


def test_another_released_file_of_the_same_name_is_other_data(tmp_path):
    longer = RELEASED["basic_train.tsv"] + b"[MAX 0 5 ]\t5\n"
    write(tmp_path, RELEASED | {"basic_train.tsv": longer})
    before = released_task(tmp_path)
    assert before.load("train", tmp_path / "data").num_examples == 3
    write(tmp_path, RELEASED)
    after = released_task(tmp_path)
    assert after.folder() != before.folder()
    assert after.load("train", tmp_path / "data").num_examples == 2


def test_a_released_file_rewritten_with_the_same_size_is_other_data(tmp_path):
    write(tmp_path, RELEASED)
    folder = released_task(tmp_path).folder()
    file = tmp_path / "basic_val.tsv"
    written_at = file.stat().st_mtime_ns
    file.write_bytes(RELEASED["basic_val.tsv"].replace(b"9", b"4"))
    os.utime(file, ns=(written_at, written_at + 1_000_000))
    assert file.stat().st_size == len(RELEASED["basic_val.tsv"])
    assert released_task(tmp_path).folder() != folder


@pytest.mark.parametrize("below", ["", "lra_release/", "lra_release/lra_release/"])
def test_released_files_are_found_in_the_release(tmp_path, below):
    folder = tmp_path / below / "listops-1000"
    write(folder, RELEASED)
    for source in (tmp_path, folder):
        validation = released_task(source).load("validation", tmp_path / "data")
        assert validation.labels.tolist() == [8]
    before = released_task(tmp_path).folder()
    write(folder, {"basic_val.tsv": b"Source\tTarget\n1\t1\n"})
    assert released_task(tmp_path).folder() != before


def test_released_files_of_source_dir_itself_come_first(tmp_path):
    write(tmp_path, RELEASED)
    write(tmp_path / "listops-1000", {"basic_train.tsv": b""})
    assert released_task(tmp_path).load("train", tmp_path / "x").num_examples == 2


def test_a_released_file_that_is_missing_is_named(tmp_path):
    write(tmp_path, {"basic_train.tsv": RELEASED["basic_train.tsv"]})
    message = r"basic_val.tsv is missing: .* folder of basic_train.tsv, basic_val.tsv"
    with pytest.raises(DataError, match=message):
        released_task(tmp_path).load("train", tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no column Source, Target"),
        (b"Source\tTarget\n[MAX 3 4 ]\t4.0\n", "its labels are 4.0, not 0,1,2"),
        (b"Source\tTarget\n[FIRST 3 4 ]\t4\n", r"'\[FIRST' is not a token"),
        (b"Source\tTarget\n[MAX " + b"1 " * 63 + b"]\t1\n", "65 tokens are not from 1"),
    ],
)
def test_a_wrong_released_file_is_named(tmp_path, content, message):
    write(tmp_path, RELEASED | {"basic_val.tsv": content})
    with pytest.raises(DataError, match=f"basic_val.tsv.* {message}"):
        released_task(tmp_path).load("train", tmp_path / "x")


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
        ("[MIN [MAX 2 5 ] [MIN 3 5 ] ]", 3),  # root; it has no literals
        ("[MED 6 [SM 0 0 ] 9 ]", 7),  # majority, root; and literals, (6 + 9) // 2
        ("[MIN 2 [MAX 4 4 ] ]", 2),  # literals alone
        ("5", 5),  # a digit is its own answer
    )
    assert ListOps().floors(train, test) == {
        "majority class": 2 / 6,
        "root operator": 4 / 6,
        "root operator and its literal arguments": 5 / 6,
    }


def test_floors_are_fitted_on_train_and_scored_on_test():
    """Where test has other labels more often, by root and over all."""
    train = split_of(
        ("[MAX 1 2 ]", 7),
        ("[MAX 1 2 ]", 7),
        ("[MAX 1 2 ]", 7),
        ("[MAX 1 2 ]", 8),
        ("[MIN 1 2 ]", 5),
    )  # most frequent: 7 over all; MAX 7, MIN 5
    test = split_of(
        ("[MAX [SM 1 2 ] [SM 1 2 ] ]", 8),
        ("[MAX [SM 1 2 ] [SM 1 2 ] ]", 8),
        ("[MAX [SM 1 2 ] [SM 1 2 ] ]", 8),
        ("[MAX [SM 1 2 ] [SM 1 2 ] ]", 7),
        ("[MIN [SM 1 2 ] [SM 1 2 ] ]", 6),
    )  # no root has a literal argument
    assert ListOps().floors(train, test) == {
        "majority class": 1 / 5,
        "root operator": 1 / 5,
        "root operator and its literal arguments": 1 / 5,
    }
