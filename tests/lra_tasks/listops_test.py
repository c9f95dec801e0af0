"""ListOps: splits, released files, floors; drawn expressions against the recursion."""

import os
import random
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from lra_tasks.errors import DataError
from lra_tasks.listops import OPERATORS, VOCABULARY, ListOps, apply
from tests.lra_tasks.archive_server import write
from tests.lra_tasks.listops_cases import APPLY, value_of
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
    assert "listops: 1 example left out of train" in stderr
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
    other_data = (
        released_task(tmp_path / "other"),
        replace(task, max_length=65),
        ListOps(),
        ListOps(seed=1),
    )
    assert len({each.folder() for each in (task, *other_data)}) == 5


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
        (b"Source\tTarget\n[MAX " + b"1 " * 63 + b"]\t1\n", "65 tokens are more than"),
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


SHORT = ListOps(min_tokens=10, max_tokens=64, max_length=64)


class Tree(NamedTuple):
    """An expression; the root of a digit is None."""

    length: int
    root: str | None
    value: int
    num_operators: int
    depth: int


def draw_reference_trees(count, shortest, longest, max_depth):
    """Draws trees one by one, by the recursion, until `count` have a fitting length."""
    rng = random.Random(0)

    def grow(depth):
        if depth >= max_depth or rng.random() >= 0.25:
            return Tree(
                length=1,
                root=None,
                value=rng.randrange(10),
                num_operators=0,
                depth=1,
            )
        operator = rng.choice(OPERATORS)
        children = [grow(depth + 1) for _ in range(rng.randint(2, 10))]
        return Tree(
            length=2 + sum(child.length for child in children),
            root=operator,
            value=APPLY[operator]([child.value for child in children]),
            num_operators=1 + sum(child.num_operators for child in children),
            depth=1 + max(child.depth for child in children),
        )

    trees = []
    while len(trees) < count:
        tree = grow(1)
        if shortest <= tree.length <= longest:
            trees.append(tree)
    return trees


def measure(split):
    """The trees of a split, from their tokens."""
    is_operator = (split.inputs >= 1) & (split.inputs <= 4)
    is_close = split.inputs == 5
    depth = np.cumsum(is_operator.astype(int) - is_close, axis=1).max(axis=1) + 1
    num_operators = is_operator.sum(axis=1)
    roots = [VOCABULARY[token] for token in split.inputs[:, 0]]
    columns = (split.lengths, roots, split.labels, num_operators, depth)
    return [Tree(*values) for values in zip(*columns, strict=True)]


def assert_same_distribution(values, reference, bins=None):
    """χ² of two samples over categories, far beyond chance only if they differ."""
    if bins is not None:
        values = np.digitize(values, bins).tolist()
        reference = np.digitize(reference, bins).tolist()
    counts = Counter(values)
    reference_counts = Counter(reference)
    keys = counts | reference_counts
    a = np.array([counts[key] for key in keys])
    b = np.array([reference_counts[key] for key in keys])
    scale = np.sqrt(b.sum() / a.sum())
    differences = a * scale - b / scale
    chi_squared = np.sum(differences**2 / (a + b))
    freedom = len(a) - 1
    assert chi_squared <= freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("shortest", "longest", "max_depth", "count"),
    [(10, 64, 10, 701), (501, 1999, 10, 401), (10, 64, 3, 2003)],
)
def test_generate_draws_from_the_distribution_of_the_recursion(
    shortest, longest, max_depth, count
):
    task = ListOps(
        seed=3,
        max_depth=max_depth,
        min_tokens=shortest,
        max_tokens=longest,
        max_length=longest,
    )
    split = task.generate(5 * count)
    np.testing.assert_array_equal((split.inputs > 0).sum(axis=1), split.lengths)
    for row in range(300):
        expression = split.inputs[row, : split.lengths[row]]
        assert value_of(expression) == split.labels[row]

    trees = measure(split)
    reference = draw_reference_trees(count, shortest, longest, max_depth)
    for field, bins in (
        ("length", np.linspace(shortest, longest, 12)),
        ("root", None),
        ("value", None),
        ("depth", None),
    ):
        assert_same_distribution(
            [getattr(tree, field) for tree in trees],
            [getattr(tree, field) for tree in reference],
            bins,
        )
    assert_same_distribution(
        [tree.num_operators / tree.length for tree in trees],
        [tree.num_operators / tree.length for tree in reference],
        bins=np.linspace(0.1, 0.3, 9),
    )


@pytest.mark.parametrize(
    ("shortest", "longest", "max_length"), [(17, 17, 64), (10, 1999, 23)]
)
def test_generate_keeps_its_limits_and_reaches_them(shortest, longest, max_length):
    task = ListOps(
        min_tokens=shortest, max_tokens=longest, max_length=max_length, max_args=3
    )
    split = task.generate(2003)
    assert split.inputs.shape[1] == max_length
    expected_lengths = range(shortest, min(longest, max_length) + 1)
    assert set(split.lengths.tolist()) == set(expected_lengths)

    num_operators = ((split.inputs >= 1) & (split.inputs <= 4)).sum(axis=1)
    num_nodes = (split.inputs > 0).sum(axis=1) - num_operators  # without the brackets
    num_arguments = num_nodes - 1  # every node but the root
    assert np.all(2 * num_operators <= num_arguments)
    assert np.all(num_arguments <= 3 * num_operators)


def test_an_operator_has_its_value_also_of_as_many_arguments_as_it_may_have():
    """They sum to more than a byte holds."""
    digits = np.arange(100, dtype=np.uint8) % 10
    values = apply(np.arange(4), np.full(4, 100), np.tile(digits, 4))
    assert values.tolist() == [APPLY[name](digits.tolist()) for name in OPERATORS]


def test_generate_draws_no_expression_twice_and_ends_when_there_are_no_more():
    # Two digits under one operator make 4 × 10 × 10 expressions of four tokens.
    task = ListOps(min_tokens=4, max_tokens=4, max_length=4)
    assert len({row.tobytes() for row in task.generate(400).inputs}) == 400
    with pytest.raises(DataError, match="only 400 of 401 different expressions"):
        task.generate(401)


def test_generate_draws_the_same_data_on_every_machine():
    # The one expected value that is copied from the output: it may never change
    # without a new ListOps.data_version, for prepared data and results rely on it.
    digest = "7deef8ede59cc9f15108073edbe9a43e1125084d76b072eaa6311daa6dadbf7d"
    assert SHORT.generate(509).content_hash == digest
    assert SHORT.generate(1013).take(slice(509)).content_hash == digest
    assert replace(SHORT, seed=1).generate(509).content_hash != digest


def test_generate_draws_the_same_expressions_into_wider_rows():
    split = SHORT.generate(509)
    wider_split = replace(SHORT, max_length=67).generate(509)
    cut_split = replace(wider_split, inputs=wider_split.inputs[:, :64])
    assert cut_split.content_hash == split.content_hash
    assert not wider_split.inputs[:, 64:].any()
