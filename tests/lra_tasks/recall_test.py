"""Recall: splits, records, floors, texts and options."""

import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.recall import NO_LABEL, Recall, generate
from lra_tasks.split import Split
from lra_tasks.task import get_task
from tests.lra_tasks.recall_cases import ONE, SMALL, read_labels
from tests.lra_tasks.splits import load_all


@pytest.mark.parametrize("task", [SMALL, ONE])
def test_splits_have_their_sizes_are_disjoint_and_come_back_from_the_disk(
    tmp_path, task
):
    splits = load_all(task, tmp_path)

    assert [split.num_examples for split in splits] == [997, 101, 211]
    rows = {row.tobytes() for split in splits for row in split.inputs}
    assert len(rows) == 997 + 101 + 211
    generated = generate(task, 997 + 101 + 211).cut((997, 101, 211))
    for split, expected in zip(splits, generated.values(), strict=True):
        assert split.content_hash == expected.content_hash


def test_what_is_in_test_is_left_out_of_train_where_few_sequences_exist(
    tmp_path, capsys
):
    # Of a pair and its query there are 3 × 4 sequences.
    task = Recall(
        max_length=3,
        num_pairs=1,
        num_keys=3,
        num_values=4,
        num_queries=1,
        num_train=997,
        num_validation=3,
        num_test=3,
    )
    splits = load_all(task, tmp_path)
    assert "examples left out of train: repeated" in capsys.readouterr().err
    rows_by_split = [{row.tobytes() for row in split.inputs} for split in splits]
    assert sum(map(len, rows_by_split)) == 3 * 4
    assert len(set.union(*rows_by_split)) == 3 * 4

    larger = replace(task, num_validation=101, num_test=211)
    with pytest.raises(DataError, match="recall: no example of validation is left"):
        larger.load("test", tmp_path)


@pytest.mark.parametrize("task", [SMALL, ONE])
def test_records_say_the_labels_without_our_code(tmp_path, task):
    task.load("train", tmp_path)
    builder = tfds.builder_from_directory(task.folder(tmp_path))
    record = builder.as_data_source("train")[0]

    metadata = builder.info.metadata
    assert metadata["options"] == asdict(task)
    assert metadata["vocab_size"] == len(task.words)
    for kind in ("keys", "values", "distractors"):
        first = int(re.search(rf"{kind} from (\d+)", metadata["token_ids"])[1])
        assert task.words[first] == f"{kind[0]}0"
    labels = read_labels(task.decode(record["tokens"]).split())
    if task is ONE:
        assert record["label"] == labels[-1]
        assert builder.info.features["label"].names == task.label_names
    else:
        assert record["labels"].tolist() == labels


def split_of(task, texts):
    """A split of sequences whose labels are what the reader says."""
    inputs, lengths = task.encode(texts)
    labels = np.full(inputs.shape, NO_LABEL, np.int32)
    for row, text in enumerate(texts):
        label_of_word = read_labels(text.split())
        labels[row, : len(label_of_word)] = label_of_word
    if task.num_queries == 1:
        labels = np.array([row[row >= 0].item() for row in labels], np.int32)
    return Split(inputs, lengths, labels)


# Train asks for 3, 3 and 2.
TRAIN_TEXTS = (
    "k0 v3 k1 v3 k2 v1 k1",
    "k0 v3 k1 v2 k2 v2 k0",
    "k5 v4 k6 v2 k1 v2 k1",
)
TEST_TEXTS = (
    "k0 v3 k1 v4 k2 v4 k2",  # 4: the most frequent value present
    "k0 v3 k1 v4 k2 v1 k0",  # 3: majority; of three values once each, v1 is guessed
    "k0 v4 k1 v0 k2 v4 k0",  # 4: the most frequent value present
    "k0 v3 k1 v3 k2 v0 k1",  # 3: both
)


@pytest.mark.parametrize(
    ("num_distractors", "dtype"), [(127, np.uint8), (128, np.uint16)]
)
def test_tokens_are_of_the_smallest_type_that_has_all_ids(num_distractors, dtype):
    task = Recall(num_keys=64, num_values=64, num_distractors=num_distractors)
    assert task.vocab_size == 129 + num_distractors
    assert task.dtype is dtype


def test_floors_of_one_query_by_hand():
    task = replace(ONE, max_length=7, num_pairs=3)
    floors = task.floors(split_of(task, TRAIN_TEXTS), split_of(task, TEST_TEXTS))
    assert floors == {
        "majority class": 2 / 4,
        "most frequent value present": 3 / 4,
    }


def test_floors_of_two_queries_by_hand():
    task = replace(ONE, max_length=8, num_pairs=3, num_queries=2)
    # Train also asks for 3, 2 and 2. Of 2 and 3, which are equally often asked for, the
    # floor guesses 2.
    train = split_of(task, [f"{text} k1" for text in TRAIN_TEXTS])
    # Test also asks for 3, 3, 4 and 3, which train has less often.
    test = split_of(task, [f"{text} k0" for text in TEST_TEXTS])
    assert task.floors(train, test) == {
        "majority class": 0 / 8,
        "most frequent value present": 5 / 8,
    }


def test_encode_and_decode_a_text():
    text = "k3 v4 d2 k8 v0 k3"
    inputs, lengths = SMALL.encode([text])
    assert inputs[0, :6].tolist() == [4, 14, 17, 9, 10, 4]
    assert SMALL.decode(inputs[0, : lengths[0]]) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k9", "'k9' is none of k0 to k8, v0 to v4, d0 to d2"),
        ("<pad>", "'<pad>' is none of"),
        ("", "is empty: give it 1 to max_length=23 tokens"),
        ("k0 " * 24, "24 tokens are more than max_length=23"),
    ],
)
def test_encode_refuses_what_is_no_text(text, message):
    with pytest.raises(DataError, match=message):
        SMALL.encode([text])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_pairs": 10}, "num_pairs=10 must be at most num_keys=9"),
        ({"max_length": 13}, "num_queries=6 need 14 tokens, over max_length=13"),
        ({"num_pairs": 0}, "num_pairs must be at least 1"),
        ({"num_queries": 0}, "num_queries must be at least 1"),
        ({"num_values": 1}, "num_values must be at least 2"),
        ({"num_distractors": 0}, "num_distractors must be at least 1"),
        ({"num_values": 2**16}, "make 65,549 ids with the padding: at most 65,536"),
        ({"num_test": 0}, "each split needs an example"),
        ({"source_dir": "folder"}, "drawn from a seed: leave out source_dir"),
    ],
)
def test_recall_refuses_bad_options(change, message):
    with pytest.raises(DataError, match=f"recall: .*{message}"):
        get_task("recall", **asdict(SMALL) | change)
