"""Recall: sequences against a slow reading and writing of them, floors, options."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import tensorflow_datasets as tfds

from lra_tasks.errors import DataError
from lra_tasks.recall import NO_LABEL, ROWS_PER_ROUND, Recall, generate
from lra_tasks.split import Split
from lra_tasks.task import get_task
from tests.lra_tasks.archive_server import load_all

SIZES = {"num_train": 997, "num_validation": 101, "num_test": 211}
SMALL = Recall(
    max_length=23,
    num_pairs=4,
    num_keys=9,
    num_values=5,
    num_distractors=3,
    num_queries=6,
    **SIZES,
)
ONE = replace(SMALL, num_queries=1)


def drawn(task, count):
    """The sequences that generate draws, built token by token, as lists."""
    rng = np.random.Generator(np.random.Philox(task.seed))
    num_pairs, num_queries = task.num_pairs, task.num_queries
    num_places = task.max_length - num_pairs
    keys = rng.random((ROWS_PER_ROUND, task.num_keys)).tolist()
    values = rng.integers(task.num_values, size=(ROWS_PER_ROUND, num_pairs)).tolist()
    queried = rng.integers(num_pairs, size=(ROWS_PER_ROUND, num_queries)).tolist()
    distractors = rng.integers(
        task.num_distractors, size=(ROWS_PER_ROUND, task.max_length)
    ).tolist()
    places = rng.random((ROWS_PER_ROUND, num_places - 1)).tolist()
    for row in range(count):
        by_draw = sorted(range(task.num_keys), key=keys[row].__getitem__)
        pairs = list(zip(by_draw[:num_pairs], values[row], strict=True))
        by_draw = sorted(range(num_places - 1), key=places[row].__getitem__)
        taken = {*by_draw[: num_pairs + num_queries - 1], num_places - 1}
        waiting = [[f"k{key}", f"v{value}"] for key, value in pairs]
        waiting += [[f"k{pairs[i][0]}"] for i in queried[row]]
        words = []
        for place in range(num_places):
            if place in taken:
                words += waiting.pop(0)
            else:
                words.append(f"d{distractors[row][len(words)]}")
        yield words


def answers(words):
    """The value behind the first of each key that is there again; else None."""
    value_of, labels = {}, []
    for i, word in enumerate(words):
        labels.append(value_of.get(word))
        if word.startswith("k") and word not in value_of:
            value_of[word] = int(words[i + 1].removeprefix("v"))
    return labels


@pytest.mark.parametrize(
    "task", [SMALL, ONE, Recall(max_length=4096), replace(SMALL, max_length=14)]
)
def test_generate_draws_the_sequences_of_a_slow_writer_with_the_labels_of_a_reader(
    task,
):
    split = generate(task, 300)
    assert split.inputs.shape == (300, task.max_length)
    assert (split.lengths == task.max_length).all()
    assert split.inputs.dtype == (np.uint8 if task.vocab_size <= 256 else np.uint16)
    for ids, labels, words in zip(
        split.inputs, split.labels, drawn(task, 300), strict=True
    ):
        assert task.decode(ids) == " ".join(words)
        expected = answers(words)
        if task.num_queries == 1:
            assert expected[:-1] == [None] * (task.max_length - 1)
            assert labels == expected[-1]
        else:
            by_token = [NO_LABEL if x is None else x for x in expected]
            assert labels.tolist() == by_token
            assert sum(x is not None for x in expected) == task.num_queries


def test_every_choice_is_uniform():
    """Keys, values and queried pairs; and where a pair may begin, which the line of
    places decides."""
    task = replace(SMALL, max_length=15, num_queries=2)
    split = generate(task, 30_000)
    first_key = split.inputs[:, 0]  # the pair or distractor that begins
    ids = np.bincount(split.inputs.ravel(), minlength=task.vocab_size) / 30_000

    assert not ids[0]
    np.testing.assert_allclose(ids[1:10], (4 + 2) / 9, rtol=0.03)
    np.testing.assert_allclose(ids[10:15], 4 / 5, rtol=0.03)
    np.testing.assert_allclose(ids[15:], 5 / 3, rtol=0.03)
    # 5 of 10 places are taken in front of the last: half of the sequences begin so.
    assert np.mean(first_key <= 9) == pytest.approx(0.5, abs=0.02)

    queries = split.inputs[:, -1][:, None]
    pairs = split.inputs[np.diff(split.inputs == queries, prepend=0) == 1]
    assert len(pairs) >= 2 * 30_000
    is_key = (split.inputs >= 1) & (split.inputs <= 9)
    which = (np.cumsum(is_key, axis=1) * (split.inputs == queries)).astype(int)
    which = np.where(which > 0, which, 99).min(axis=1)  # 1 to 4: the pair that it asks
    np.testing.assert_allclose(np.bincount(which)[1:] / 30_000, 1 / 4, rtol=0.05)


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 24},
        {"num_pairs": 5},
        {"num_keys": 10},
        {"num_values": 6},
        {"num_distractors": 4},
        {"num_queries": 7},
        {"seed": 1},
    ],
)
def test_every_option_makes_other_data(change):
    task = replace(SMALL, **change)
    assert task.folder() != SMALL.folder()
    ids = (generate(each, 200).inputs for each in (task, SMALL))
    ours, theirs = (each[:, :23].tobytes() for each in ids)
    assert ours != theirs
    [(option, value)] = change.items()
    split = generate(task, 2000)
    kinds = np.digitize(split.inputs, [1, task.first_value, task.first_distractor])
    found = {
        "max_length": split.inputs.shape[1],
        "num_pairs": (kinds == 2).sum(axis=1).max(),
        "num_keys": split.inputs[kinds == 1].max(),
        "num_values": split.labels.max() + 1,
        "num_distractors": split.inputs.max() - task.first_distractor + 1,
        "num_queries": (split.labels >= 0).sum(axis=1).min(),
    }
    assert found.get(option, value) == value


def test_splits_have_their_sizes_are_disjoint_and_come_back_from_the_disk(tmp_path):
    for task in (SMALL, ONE):
        splits = load_all(task, tmp_path)
        assert [split.num_examples for split in splits] == [997, 101, 211]
        rows = {row.tobytes() for split in splits for row in split.inputs}
        assert len(rows) == 997 + 101 + 211
        whole = generate(task, 997 + 101 + 211).cut((997, 101, 211))
        hashes = [split.content_hash for split in splits]
        assert hashes == [each.content_hash for each in whole.values()]


def test_what_is_in_test_is_left_out_of_train_where_few_sequences_exist(
    tmp_path, capsys
):
    task = Recall(
        max_length=3, num_pairs=1, num_keys=3, num_values=4, num_queries=1, **SIZES
    )
    with pytest.raises(DataError, match="recall: no example of validation is left"):
        task.load("test", tmp_path)
    some = replace(task, num_test=3, num_validation=3)
    train, validation, test = load_all(some, tmp_path)
    rows = [{row.tobytes() for row in x.inputs} for x in (train, validation, test)]
    assert "examples left out of train: repeated" in capsys.readouterr().err
    assert sum(map(len, rows)) == len(set.union(*rows))
    assert len(set.union(*rows)) == 3 * 4


def test_records_say_the_labels_without_our_code(tmp_path):
    for task in (SMALL, ONE):
        task.load("train", tmp_path)
        builder = tfds.builder_from_directory(task.folder(tmp_path))
        record = builder.as_data_source("train")[0]
        words = task.decode(record["tokens"]).split()
        expected = answers(words)
        if task is ONE:
            assert record["label"] == expected[-1]
            assert builder.info.features["label"].names == task.label_names
        else:
            assert record["labels"].tolist() == [
                NO_LABEL if x is None else x for x in expected
            ]
        options = builder.info.metadata["options"]
        assert options == asdict(task)


def split_of(task, *texts):
    """Sequences whose labels are what the reader says."""
    inputs, lengths = task.encode(texts)
    labels = np.full(inputs.shape, NO_LABEL, np.int32)
    for i, text in enumerate(texts):
        found = [NO_LABEL if x is None else x for x in answers(text.split())]
        labels[i, : len(found)] = found
    if task.num_queries == 1:
        labels = np.array([row[row >= 0].item() for row in labels], np.int32)
    return Split(inputs, lengths, labels)


def test_floors_by_hand():
    train = ("k0 v3 k1 v3 k2 v1 k1", "k0 v3 k1 v2 k2 v2 k0", "k5 v4 k6 v2 k1 v2 k1")
    test = (
        "k0 v3 k1 v4 k2 v4 k2",  # 4: the most frequent value present
        "k0 v3 k1 v4 k2 v1 k0",  # 3: majority; of three values once each, v1 is guessed
        "k0 v4 k1 v0 k2 v4 k1",  # 0: neither
        "k0 v3 k1 v3 k2 v0 k1",  # 3: both
    )
    one = replace(ONE, max_length=7, num_pairs=3)
    assert one.floors(split_of(one, *train), split_of(one, *test)) == {
        "majority class": 2 / 4,
        "most frequent value present": 2 / 4,
    }
    two = replace(one, max_length=8, num_queries=2)
    train = [f"{text} k1" for text in train]  # also asks for 3, 2 and 2: 3 3 3 2 2 2
    test = [f"{text} k0" for text in test]  # also asks for 3, 3, 4 and 3
    assert two.floors(split_of(two, *train), split_of(two, *test)) == {
        "majority class": 0 / 8,  # of 2 and 3, as often in train, 2
        "most frequent value present": 4 / 8,
    }


def test_texts_and_what_is_no_text():
    text = "k3 v4 d2 k8 v0 k3"
    inputs, lengths = SMALL.encode([text])
    assert inputs[0, :6].tolist() == [4, 14, 17, 9, 10, 4]
    assert SMALL.decode(inputs[0, : lengths[0]]) == text
    for bad, message in (
        ("k9", "'k9' is none of k0 to k8, v0 to v4, d0 to d2"),
        ("<pad>", "'<pad>' is none of"),
        ("", "0 tokens are not from 1 to max_length=23"),
        ("k0 " * 24, "24 tokens are not from 1"),
    ):
        with pytest.raises(DataError, match=message):
            SMALL.encode([bad])


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
def test_what_is_turned_away(change, message):
    with pytest.raises(DataError, match=f"recall: .*{message}"):
        get_task("recall", **asdict(SMALL) | change)


def test_same_seed_same_data_on_every_machine():
    # The one expected value that is copied from the output: it may never change
    # without a new Recall.data_version, for prepared data and results rely on it.
    digest = generate(SMALL, 1500).content_hash
    assert digest == "3e65bb971bd8ecb0f4e910af56973f86bf0900073aa1e1bc11f91f948ca3df72"
    assert generate(SMALL, 2048).take(slice(1500)).content_hash == digest
    assert generate(replace(SMALL, seed=1), 1500).content_hash != digest
