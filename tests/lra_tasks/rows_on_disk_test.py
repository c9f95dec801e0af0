"""Rows on disk: indexed as an array is, and prefetched by a thread."""

import dataclasses
import threading

import numpy as np
import pytest

from tests.lra_tasks.small_corpus import corpus


@pytest.fixture
def train(tmp_path, texts):
    return corpus(texts).load("train", tmp_path)


def test_rows_on_disk_are_indexed_as_an_array_is(train):
    rows = train.inputs[:]
    mask = train.labels == 1
    numbers = np.array([[-1, 3], [0, 3]], np.int16)
    for index in (mask, mask.tolist(), numbers, -2, np.int64(4), slice(9, None, -2)):
        np.testing.assert_array_equal(train.inputs[index], rows[index])
    np.testing.assert_array_equal(list(train.inputs), rows)


def test_rows_on_disk_refuse_an_index_that_an_array_refuses(train):
    num_rows = len(train.inputs)
    short_mask = np.ones(num_rows - 1, bool)
    for index in (num_rows, [0, -num_rows - 1], np.array([1.0]), short_mask):
        with pytest.raises(IndexError):
            train.inputs[index]


def test_a_split_on_disk_does_what_one_in_memory_does(train):
    in_memory = dataclasses.replace(train, inputs=train.inputs[:])
    for examples in (train.labels == 1, slice(5), np.array([2, 2, 0])):
        part = train.take(examples)
        assert part.content_hash == in_memory.take(examples).content_hash
        assert ((part.inputs > 0).sum(axis=1) == part.lengths).all()

    for on_disk_example, example in zip(train, in_memory, strict=True):
        np.testing.assert_array_equal(on_disk_example[0], example[0])
        assert on_disk_example[1] == example[1]
    assert train.example_hashes() == in_memory.example_hashes()


class RecordingSource:
    """A data source that notes which threads read it."""

    def __init__(self, source):
        self.source = source
        self.threads = []

    def __getitems__(self, numbers):
        self.threads.append(threading.current_thread())
        return self.source.__getitems__(numbers)


def test_rows_are_prefetched_by_a_thread(train):
    rows = train.inputs
    expected = rows[:]
    rows.source = RecordingSource(rows.source)

    rows.prefetch(np.array([5, 3, 8, 1]))

    np.testing.assert_array_equal(rows[[5, 3, 8]], expected[[5, 3, 8]])
    assert rows.source.threads
    assert threading.main_thread() not in rows.source.threads


def test_rows_that_were_not_prefetched_last_are_read_at_once(train):
    rows = train.inputs
    expected = rows[:]
    rows.source = RecordingSource(rows.source)

    rows.prefetch(np.array([5, 3, 8, 1]))
    np.testing.assert_array_equal(rows[[5, 4]], expected[[5, 4]])
    rows.prefetch(np.array([7, 7]))
    np.testing.assert_array_equal(rows[[8, 1]], expected[[8, 1]])

    assert rows.source.threads.count(threading.main_thread()) == 2
