"""The content hash sees every value, shape and dtype."""

import dataclasses

import numpy as np
import pytest

from lra_tasks.split import Split

SPLIT = Split(
    inputs=np.array([[3, 1, 2, 0, 0], [4, 5, 6, 7, 1], [9, 0, 0, 0, 0]], np.uint8),
    lengths=np.array([3, 5, 1], np.int32),
    labels=np.array([0, 1], np.int32),
    pairs=np.array([[0, 1], [2, 0]], np.int32),
)


def test_examples_of_a_paired_split_are_its_pairs():
    assert SPLIT.num_examples == 2


@pytest.mark.parametrize("column", ["inputs", "lengths", "labels", "pairs"])
def test_hash_changes_with_any_bit(column):
    changed = getattr(SPLIT, column).copy()
    changed.flat[-1] ^= 1
    other = dataclasses.replace(SPLIT, **{column: changed})
    assert other.content_hash() != SPLIT.content_hash()


@pytest.mark.parametrize(
    "changed",
    [
        {"inputs": SPLIT.inputs.astype(np.uint16)},
        {"inputs": SPLIT.inputs.reshape(5, 3)},
        {"pairs": None},
        {"lengths": SPLIT.labels, "labels": SPLIT.lengths},
    ],
)
def test_hash_changes_with_the_form(changed):
    other = dataclasses.replace(SPLIT, **changed)
    assert other.content_hash() != SPLIT.content_hash()


def test_hash_is_of_values_not_of_memory():
    strided = np.asfortranarray(np.repeat(SPLIT.inputs, 2, axis=1))[:, ::2]
    big_endian = SPLIT.lengths.astype(">i4")
    same = dataclasses.replace(SPLIT, inputs=strided, lengths=big_endian)
    assert same.content_hash() == SPLIT.content_hash()
