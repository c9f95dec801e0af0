"""ListOps: the process against the recursion it is, released files, floors."""

import collections
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest

from lra_tasks.errors import DataError
from lra_tasks.listops import OPERATORS, VOCABULARY, ListOps, generate
from tests.lra_tasks.archive_server import load_all, write

SIZES = {"num_train": 997, "num_validation": 101, "num_test": 211}
RELEASED = {
    "basic_train.tsv": b"Source\tTarget\n( ( ( [MAX 3 ) 4 ) ] )\t4\n[MIN 1 2 ]\t1\n",
    "basic_val.tsv": b"Source\tTarget\n( ( ( [SM 9 ) 9 ) ] )\t8\n",
    "basic_test.tsv": b"Source\tTarget\n( ( ( [MED 1 ) 4 ) ] )\t2\n",
}


def split_of(*examples):
    return ListOps().encode_split(*zip(*examples, strict=True))


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


@pytest.mark.parametrize("below", ["", "lra_release/", "lra_release/lra_release/"])
def test_released_files_are_found_in_the_release(tmp_path, below):
    write(tmp_path / below / "listops-1000", RELEASED)
    for place in (tmp_path, tmp_path / below / "listops-1000"):
        task = ListOps(source_dir=str(place), max_length=64)
        assert task.load("validation", tmp_path / "data").labels.tolist() == [8]
    before = task.folder()
    write(
        tmp_path / below / "listops-1000", {"basic_val.tsv": b"Source\tTarget\n1\t1\n"}
    )
    assert ListOps(source_dir=str(place), max_length=64).folder() != before
    write(tmp_path / "mine", RELEASED)  # those of source_dir itself come first
    write(tmp_path / "mine/listops-1000", {"basic_train.tsv": b""})
    mine = ListOps(source_dir=str(tmp_path / "mine"), max_length=64)
    assert mine.load("train", tmp_path / "data").num_examples == 2


def test_a_released_file_that_is_missing_is_named(tmp_path):
    write(tmp_path, {"basic_train.tsv": RELEASED["basic_train.tsv"]})
    message = r"basic_val.tsv is missing: .* folder of basic_train.tsv, basic_val.tsv"
    with pytest.raises(DataError, match=message):
        ListOps(source_dir=str(tmp_path), max_length=64).load("train", tmp_path / "x")


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


def test_floors_are_fitted_on_train_and_scored_on_test():
    """Where test has other labels more often, by root and over all."""
    train = split_of(*[("[MAX 1 2 ]", 7)] * 3, ("[MAX 1 2 ]", 8), ("[MIN 1 2 ]", 5))
    test = split_of(
        *[("[MAX [SM 1 2 ] [SM 1 2 ] ]", 8)] * 3,
        ("[MAX [SM 1 2 ] [SM 1 2 ] ]", 7),
        ("[MIN [SM 1 2 ] [SM 1 2 ] ]", 6),
    )
    assert ListOps().floors(train, test) == {
        "majority class": 1 / 5,  # 7
        "root operator": 1 / 5,  # MAX 7, MIN 5
        "root operator and its literal arguments": 1 / 5,  # of which there are none
    }


APPLY = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def evaluate(ids):
    """The value of an expression, by hand."""
    stack = [[]]
    for word in (VOCABULARY[token] for token in ids):
        if word in APPLY:
            stack.append([word])
        elif word == "]":
            operator, *values = stack.pop()
            stack[-1].append(APPLY[operator](values))
        else:
            stack[-1].append(int(word))
    ((value,),) = stack
    return value


def reference_trees(count, shortest, longest, max_depth):
    """(length, root, label, operators, depth) of `count` kept trees, one by one."""
    draw = random.Random(0)

    def grow(depth):
        if depth >= max_depth or draw.random() >= 0.25:
            return 1, None, draw.randrange(10), 0, 1
        operator = draw.choice(OPERATORS)
        children = [grow(depth + 1) for _ in range(draw.randint(2, 10))]
        sizes, _, values, operators, depths = zip(*children, strict=True)
        value = APPLY[operator](values)
        return 2 + sum(sizes), operator, value, 1 + sum(operators), 1 + max(depths)

    while count:
        tree = grow(1)
        if shortest <= tree[0] <= longest:
            count -= 1
            yield tree


def assert_same_distribution(ours, theirs, bins=None):
    """χ² of two samples over categories, far beyond chance only if they differ."""
    if bins is not None:
        ours, theirs = (np.digitize(x, bins).tolist() for x in (ours, theirs))
    ours, theirs = collections.Counter(ours), collections.Counter(theirs)
    a, b = np.array([(ours[key], theirs[key]) for key in ours | theirs]).T
    scale = np.sqrt(b.sum() / a.sum())
    statistic = np.sum((a * scale - b / scale) ** 2 / (a + b))
    freedom = len(a) - 1
    assert statistic <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("shortest", "longest", "max_depth", "count"),
    [(10, 64, 10, 701), (501, 1999, 10, 401), (10, 64, 3, 2003)],
)
def test_distribution_is_the_recursions(shortest, longest, max_depth, count):
    limits = {"min_tokens": shortest, "max_tokens": longest, "max_length": longest}
    split = generate(ListOps(seed=3, max_depth=max_depth, **limits), 5 * count)
    inputs, lengths, labels = split.inputs, split.lengths, split.labels
    for ids, n, value in zip(inputs[:300], lengths, labels, strict=False):
        assert evaluate(ids[:n]) == value
    np.testing.assert_array_equal((inputs > 0).sum(axis=1), lengths)
    theirs = list(reference_trees(count, shortest, longest, max_depth))
    length, root, label, operators, depth = zip(*theirs, strict=True)
    opens = (inputs >= 1) & (inputs <= 4)
    our_depth = np.cumsum(opens.astype(int) - (inputs == 5), axis=1).max(axis=1) + 1
    share = np.array(operators) / length
    assert_same_distribution(lengths, length, np.linspace(shortest, longest, 12))
    assert_same_distribution([VOCABULARY[token] for token in inputs[:, 0]], root)
    assert_same_distribution(labels.tolist(), label)
    assert_same_distribution(our_depth.tolist(), depth)
    assert_same_distribution(opens.sum(1) / lengths, share, np.linspace(0.1, 0.3, 9))


@pytest.mark.parametrize(
    ("shortest", "longest", "max_length"), [(17, 17, 64), (10, 1999, 23)]
)
def test_limits_are_kept_and_reached(shortest, longest, max_length):
    limits = {"min_tokens": shortest, "max_tokens": longest, "max_length": max_length}
    split = generate(ListOps(max_args=3, **limits), 2003)
    inputs = split.inputs
    assert inputs.shape[1] == max_length
    reached = set(range(shortest, min(longest, max_length) + 1))
    assert set(split.lengths.tolist()) == reached
    operators = ((inputs >= 1) & (inputs <= 4)).sum(axis=1)
    arguments = (inputs > 0).sum(axis=1) - 1 - operators  # each node but the root
    assert np.all((2 * operators <= arguments) & (arguments <= 3 * operators))


def test_no_expression_twice_and_an_end_when_there_are_no_more():
    # Two digits under one operator: 4 × 10 × 10 expressions of four tokens.
    four = ListOps(min_tokens=4, max_tokens=4, max_length=4)
    assert len({row.tobytes() for row in generate(four, 400).inputs}) == 400
    with pytest.raises(DataError, match="only 400 of 401 different expressions"):
        generate(four, 401)


def test_same_seed_same_data_on_every_machine():
    # The one expected value that is copied from the output: it may never change
    # without a new ListOps.data_version, for prepared data and results rely on it.
    short = ListOps(min_tokens=10, max_tokens=64, max_length=64)
    digest = generate(short, 509).content_hash
    assert digest == "7deef8ede59cc9f15108073edbe9a43e1125084d76b072eaa6311daa6dadbf7d"
    assert generate(replace(short, seed=1), 509).content_hash != digest
    assert generate(short, 1013).take(slice(509)).content_hash == digest
    wide = generate(replace(short, max_length=67), 509)
    assert replace(wide, inputs=wide.inputs[:, :64]).content_hash == digest
    assert not wide.inputs[:, 64:].any()
