"""Hashes see every bit; splits are drawn alike in every run, and share nothing."""

import dataclasses

import numpy as np

from lra_tasks.split import Split, pad, remove_overlap, split_off

SPLIT = Split(
    inputs=np.array([[3, 1, 2, 0, 0], [4, 5, 6, 7, 1], [9, 0, 0, 0, 0]], np.uint8),
    lengths=np.array([3, 5, 1], np.int32),
    labels=np.array([0, 1], np.int32),
    pairs=np.array([[0, 1], [2, 0]], np.int32),
)


def test_hash_changes_with_any_bit_and_with_the_form_but_not_with_the_memory():
    changes = [
        {"inputs": SPLIT.inputs.astype(np.uint16)},
        {"inputs": SPLIT.inputs.reshape(5, 3)},
        {"pairs": None},
        {"lengths": SPLIT.labels, "labels": SPLIT.lengths},
    ]
    for column in ("inputs", "lengths", "labels", "pairs"):
        changed = getattr(SPLIT, column).copy()
        changed.flat[-1] ^= 1
        changes.append({column: changed})
    others = {dataclasses.replace(SPLIT, **each).content_hash for each in changes}
    assert len(others | {SPLIT.content_hash}) == 9
    strided = np.asfortranarray(np.repeat(SPLIT.inputs, 2, axis=1))[:, ::2]
    assert dataclasses.replace(SPLIT, inputs=strided).content_hash == SPLIT.content_hash


def test_hash_sees_every_row_of_a_large_split():
    """More than are read at a time."""
    number = 2**15 + 3
    inputs = np.zeros((number, 1), np.uint8)
    labels = np.zeros(number, np.int32)
    hashes = {Split(inputs, labels, labels).content_hash}
    places = [2**k + step for k in range(1, 16) for step in (-1, 0, 1)]
    for place in (0, *places, number - 1):
        changed = inputs.copy()
        changed[place] = 1
        hashes.add(Split(changed, labels, labels).content_hash)
    assert len(hashes) == 1 + len({0, *places, number - 1})


def split_of(rows):
    return Split(*pad(rows, 7, np.uint8), np.arange(len(rows), dtype=np.int32))


def test_split_off_draws_its_fraction_of_each_class_by_the_seed():
    labels = np.random.default_rng(0).permutation([0] * 130 + [1] * 70 + [5] * 10)
    train = Split.of_pictures(np.arange(210, dtype=np.uint8)[:, None], labels)
    kept, held = split_off(train, seed=3)
    order = np.concatenate([kept.inputs, held.inputs])[:, 0].tolist()
    assert sorted(order) == list(range(210))
    assert (np.diff(order) < 0).sum() == 1
    assert np.bincount(held.labels).tolist() == [13, 7, 0, 0, 0, 1]
    again, other = (split_off(train, seed)[1].content_hash for seed in (3, 4))
    assert again == held.content_hash != other
    assert held.inputs.min() < 50 < 160 < held.inputs.max()  # drawn from all of them


def test_split_off_rounds_its_fraction_of_a_class_to_the_nearest():
    labels = np.repeat([0, 1, 2, 3], (73, 78, 4, 6))
    train = Split.of_pictures(np.zeros((161, 1), np.uint8), labels)
    kept, held = split_off(train, seed=0)
    assert np.bincount(held.labels, minlength=4).tolist() == [7, 8, 0, 1]
    assert np.bincount(kept.labels).tolist() == [66, 70, 4, 5]


def test_remove_overlap_leaves_evaluation_alone(capsys):
    splits = {
        "train": split_of([[1, 2], [3], [4, 4], [1, 2, 0], [3, 5], [3, 5]]),
        "validation": split_of([[3], [7], [4]]),
        "test": split_of([[7], [1, 2], [7]]),
    }
    parts = remove_overlap("toy", splits)
    assert list(parts) == ["train", "validation", "test"]
    # [1, 2] is in test, [3] in validation; [1, 2, 0] only looks like [1, 2] when padded
    assert parts["train"].labels.tolist() == [2, 3, 4, 5]
    assert parts["train"].lengths.tolist() == [2, 3, 2, 2]
    assert parts["validation"].labels.tolist() == [0, 2]
    assert parts["test"] is splits["test"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1] for line in lines] == [
        " 1 examples left out of validation",
        " 2 examples left out of train",
    ]
