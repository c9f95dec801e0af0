"""The data of a task of a user's own: stored as they are, or refused before that."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from lra_tasks import storage
from lra_tasks.errors import DataError
from lra_tasks.split import NO_LABEL, SPLITS, Split, pad
from lra_tasks.task import Task
from lra_tasks.text import TextTask

ROWS = {
    "train": [[1, 2], [3, 4, 5], [6]],
    "validation": [[7]],
    "test": [[8, 1, 9, 2], [2, 9]],
}


@dataclass(frozen=True, kw_only=True)
class Tags(Task):
    """Every token has a label, its id modulo 3; but 9 has none."""

    name: ClassVar[str] = "tags"
    data_version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 10
    num_classes: ClassVar[int] = 3
    num_labels: ClassVar[int] = 4
    max_length: int = 4

    def make_splits(self, source):
        splits = {}
        for name, rows in ROWS.items():
            inputs, lengths = pad(rows, 4, np.uint8)
            has_label = (inputs > 0) & (inputs < 9)
            classes = (inputs % 3).astype(np.int32)
            labels = np.where(has_label, classes, NO_LABEL)
            splits[name] = Split(inputs, lengths, labels)
        return splits


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 4096])
def test_labels_of_tokens_come_back_where_rows_have_padding(
    tmp_path, monkeypatch, rows_at_a_time
):
    monkeypatch.setattr(storage, "ROWS_AT_A_TIME", rows_at_a_time)
    for name, expected in Tags().make_splits(None).items():
        split = Tags().load(name, tmp_path)
        np.testing.assert_array_equal(split.inputs, expected.inputs)
        np.testing.assert_array_equal(split.lengths, expected.lengths)
        np.testing.assert_array_equal(split.labels, expected.labels)


def test_a_tenth_of_examples_with_labels_of_tokens_is_held_out(tmp_path):
    class TrainTags(Tags):
        name = "train_tags"

        def make_splits(self, source):
            # 40 different rows of the tokens 1 to 4.
            digits = np.unravel_index(np.arange(40), (4, 4, 4, 4))
            inputs = (1 + np.stack(digits, axis=1)).astype(np.uint8)
            lengths = np.full(40, 4, np.int32)
            return {"train": Split(inputs, lengths, (inputs % 3).astype(np.int32))}

    splits = [TrainTags().load(name, tmp_path) for name in TrainTags.splits]
    assert [split.num_examples for split in splits] == [32, 4, 4]
    for split in splits:
        np.testing.assert_array_equal(split.labels, split.inputs % 3)


def test_the_majority_of_labels_of_tokens_is_a_floor():
    splits = Tags().make_splits(None)
    # Train has the labels 1, 2, 0, 1, 2 and 0, test has 2, 1, 2 and 2.
    assert Tags().floors(splits["train"], splits["test"]) == {"majority class": 0.0}
    assert Tags().floors(splits["test"], splits["test"]) == {"majority class": 0.75}


class Own(Task):
    """Three rows, of which train has one that a test chooses."""

    name = "own"
    data_version = "1.0.0"
    vocab_size = 256
    num_classes = 2
    row: ClassVar[Any] = [1, 255]
    label: ClassVar[Any] = 1

    def make_splits(self, source):
        splits = {}
        for name, row in (("train", self.row), ("validation", [7]), ("test", [8])):
            splits[name] = Split(
                inputs=np.array([row]),
                lengths=np.array([len(row)], np.int32),
                labels=np.array([self.label]),
            )
        return splits


def own_task(**attributes):
    """The task with other class attributes, and rows of up to four tokens."""
    return type("Own", (Own,), attributes)(max_length=4)


def test_the_largest_token_and_label_are_kept(tmp_path):
    train = own_task().load("train", tmp_path)
    assert train.inputs.tolist() == [[1, 255, 0, 0]]
    assert train.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        # As uint8 the ids 256 and -1 would be 0 and 255.
        ({"row": [1, 256]}, "train has the token id 256: vocab_size=256 has 0 to 255"),
        ({"row": [1, -1]}, "train has the token id -1: vocab_size=256 has 0 to 255"),
        ({"row": [0.5, 1.0]}, "train has tokens of float64: they must be integers"),
        ({"row": [1] * 5}, "train has 5 tokens in a sequence, over max_length=4"),
        # TFDS takes a label of -1 for one that is not known.
        ({"label": -1}, "has the label -1: num_classes=2 has 0 to 1"),
        ({"label": 2}, "has the label 2: num_classes=2 has 0 to 1"),
        # As int32 it would be 0, which is a class.
        ({"label": 0.5}, "train has labels of float64: they must be integers"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, attributes, message):
    task = own_task(**attributes)
    with pytest.raises(DataError, match=message) as caught:
        task.load("train", tmp_path)
    assert "\n" not in str(caught.value)
    assert not task.folder(tmp_path).exists()


@pytest.mark.parametrize("place", range(5))
def test_one_example_of_many_that_does_not_fit_is_refused(tmp_path, monkeypatch, place):
    examples = [([1, 2], 1), ([], 0), ([3], 0), ([4] * 4, 1), ([5], 0)]
    examples[place] = ([1, 256], 1)

    def make(self, data_dir, folder):
        return {name: iter(examples) for name in SPLITS}

    monkeypatch.setattr(storage, "ROWS_AT_A_TIME", 2)
    with pytest.raises(DataError, match="train has the token id 256"):
        own_task(make=make).load("train", tmp_path)


@pytest.mark.parametrize("tokens_at_a_time", [1, 10, 2**22])
def test_a_task_may_fill_one_array_again_and_again(
    tmp_path, monkeypatch, tokens_at_a_time
):
    def fill_again():
        row = np.zeros(4, np.uint8)
        for number in range(1, 6):
            row[:] = number
            yield row, number % 2

    def make(self, data_dir, folder):
        return {name: fill_again() for name in SPLITS}

    monkeypatch.setattr(storage, "TOKENS_AT_A_TIME", tokens_at_a_time)
    split = own_task(make=make).load("train", tmp_path)
    assert split.inputs[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert split.labels.tolist() == [1, 0, 1, 0, 1]


def test_a_task_may_fill_one_array_of_labels_again_and_again(tmp_path):
    class Fills(Tags):
        def make(self, data_dir, folder):
            return {name: self.fill_again() for name in SPLITS}

        def fill_again(self):
            labels = np.zeros(2, np.int32)
            for number in range(3):
                labels[:] = number
                yield [1, 2], labels

    labels = Fills().load("train", tmp_path).labels
    assert labels[:, :2].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_labels_may_be_truth_values(tmp_path):
    assert own_task(label=True).load("train", tmp_path).labels.tolist() == [1]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"num_classes": 2}, "has the label 2: num_classes=2 has 0 to 1"),
        # The objective would read two of the three.
        ({"num_labels": 2}, "has 3 labels in a sequence, over num_labels=2: raise"),
    ],
)
def test_labels_of_tokens_that_do_not_fit_are_refused(tmp_path, attributes, message):
    task = type("OtherTags", (Tags,), attributes)()
    with pytest.raises(DataError, match=message):
        task.load("train", tmp_path)
    assert not task.folder(tmp_path).exists()


@pytest.mark.parametrize("labels", [[0], [0, 1, 0], 1])
def test_each_token_needs_a_label_where_tokens_have_them(tmp_path, labels):
    class Yields(Tags):
        def make(self, data_dir, folder):
            return {name: [([1, 2], labels)] for name in SPLITS}

    with pytest.raises(DataError, match="for 2 tokens: give each token one, -1 for"):
        Yields().load("train", tmp_path)
    assert not Yields().folder(tmp_path).exists()


def test_an_id_that_the_bytes_of_a_text_do_not_have_is_refused(tmp_path):
    class OwnIds(TextTask):
        """Its vocab_size is Text's, 257, whose tokens are uint8."""

        name = "own_ids"
        data_version = "1.0.0"
        num_classes = 2

        def make(self, data_dir, folder):
            return {name: [([1, 256], 1)] for name in SPLITS}

    # As uint8 it would be 0, which is padding.
    with pytest.raises(DataError, match="has the token id 256, which is too large for"):
        OwnIds(max_length=2).load("train", tmp_path)


def split_with(row):
    return Split(np.array([[row]]), np.array([1], np.int32), np.array([0], np.int32))


@dataclass(frozen=True, kw_only=True)
class TwoTests(Task):
    """A further test split has the same row as train."""

    name: ClassVar[str] = "two_tests"
    data_version: ClassVar[str] = "1.0.0"
    vocab_size: ClassVar[int] = 10
    num_classes: ClassVar[int] = 1
    further: ClassVar[str] = "test_ood"
    splits: ClassVar[tuple[str, ...]] = (*SPLITS, "test_ood")
    max_length: int = 1

    def make_splits(self, source):
        train = split_with(1).concatenate(split_with(2))
        return {
            "train": train,
            "validation": split_with(3),
            "test": split_with(4),
            self.further: split_with(2),
        }


def test_a_further_test_split_shares_no_example_with_train(tmp_path):
    assert TwoTests().load("train", tmp_path).inputs.tolist() == [[1]]
    assert TwoTests().load("test_ood", tmp_path).inputs.tolist() == [[2]]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        # It would be compared with no split, and no run would be tested on it.
        (
            {"splits": (*SPLITS, "ood"), "further": "ood"},
            "splits is .*'ood'.*: begin it with .*, and each further name with test_",
        ),
        ({"splits": ("train", "test", "test_ood")}, "splits is .*: begin it with"),
        # In place of it a tenth of train would validate.
        (
            {"splits": SPLITS, "further": "val"},
            "makes the splits .*, val, but .* splits is .*: rename them",
        ),
    ],
)
def test_splits_of_other_names_are_refused(tmp_path, attributes, message):
    task = type("OtherNames", (TwoTests,), attributes)()
    with pytest.raises(DataError, match=message):
        task.load("train", tmp_path)
    assert not task.folder(tmp_path).exists()


def test_a_vocabulary_that_uint16_cannot_number_is_refused():
    assert own_task(vocab_size=2**16).dtype == np.uint16
    with pytest.raises(DataError, match="vocab_size is 65,537: at most 65,536"):
        _ = own_task(vocab_size=2**16 + 1).dtype


@dataclass(frozen=True, kw_only=True)
class ManyOptions(Own):
    """Options of all types that a configuration can hold."""

    order: Literal["as_is", "reversed"] = "as_is"
    sizes: tuple[int, ...] = (3, 4)
    rate: float | None = None
    anything: Any = None


def test_options_of_any_type_are_checked():
    ManyOptions(max_length=4, sizes=[5], rate=1, anything={})
    for option in ({"order": "sorted"}, {"sizes": 3}, {"rate": "1"}, {"rate": True}):
        [name] = option
        with pytest.raises(DataError, match=f"{name} must be .*, got "):
            ManyOptions(max_length=4, **option)


def test_a_bug_in_a_task_is_no_full_disk(tmp_path):
    def make_splits(self, source):
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        own_task(make_splits=make_splits).load("train", tmp_path)
