"""Batches: pure functions of (seed, epoch, k), and the examples that they name."""

import hashlib
import itertools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.errors import ConfigError
from nystromformer.training import data
from nystromformer.training.data import (
    MAX_CHUNK,
    HostSplit,
    bucket_lengths,
    eval_batches,
    train_example_ids,
)


def test_train_example_ids_of_an_epoch_are_a_permutation_less_its_remainder():
    example_ids = train_example_ids(7, 0, 2 * 8, num_examples=103, batch_size=12)
    first_epoch, second_epoch = np.split(example_ids, 2)
    first = set(first_epoch.ravel())
    second = set(second_epoch.ravel())
    assert len(first) == len(second) == 96
    assert first | second <= set(range(103))
    assert first != second


def test_train_example_ids_do_not_depend_on_where_the_run_was_resumed():
    example_ids = train_example_ids(7, 0, 30, 103, 12)
    parts = [train_example_ids(7, start, 5, 103, 12) for start in range(0, 30, 5)]
    np.testing.assert_array_equal(example_ids, np.concatenate(parts))
    assert not np.array_equal(example_ids, train_example_ids(8, 0, 30, 103, 12))


def test_train_example_ids_have_an_order_of_their_own_for_each_seed_and_epoch():
    """No two of the 25 epochs have the same order."""
    steps_per_epoch = 8
    orders = set()
    for seed, epoch in itertools.product(range(5), range(5)):
        start = steps_per_epoch * epoch
        example_ids = train_example_ids(seed, start, steps_per_epoch, 103, 12)
        orders.add(example_ids.tobytes())
    assert len(orders) == 5 * 5


def test_train_example_ids_of_an_epoch_are_shuffled():
    """Neighbours are as far apart as two uniform numbers, a third of their range."""
    num_examples = 10_000
    order = train_example_ids(0, 0, 100, num_examples, 100).ravel()
    correlation = np.corrcoef(np.arange(num_examples), order)[0, 1]
    assert abs(correlation) < 0.05
    distance = np.abs(np.diff(order)).mean()
    assert distance == pytest.approx(num_examples / 3, rel=0.03)


def test_train_example_ids_are_the_same_on_every_machine():
    # The one expected value that is copied from the output: recorded results rely on
    # it, and a run that goes on after an update must not change its order.
    indices = train_example_ids(0, 0, 20, num_examples=103, batch_size=12)
    digest = hashlib.sha256(indices.tobytes()).hexdigest()
    assert digest == "401d520a7766b445913447e1143e20b3664ca52e50b78046842c9a451214ef12"


@pytest.mark.parametrize(
    "inputs", [np.full((3, 2), 0.9, np.float32), np.ones((3, 2, 4), np.int32)]
)
def test_from_split_rejects_what_is_neither_ids_nor_features(inputs):
    ones = np.ones(3, np.int32)
    split = SimpleNamespace(inputs=inputs, lengths=ones, labels=ones, pairs=None)
    with pytest.raises(ConfigError, match=rf"ids.*feature vectors.*{inputs.dtype}"):
        HostSplit.from_split(split)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        # The last class would be learnt instead.
        ([0, 1, -1], "integers from 0 on, got int64 from -1 on"),
        ([0.5, 1.0, 2.0], "integers from 0 on, got float64 from 0.5 on"),
        ([[-1, 0], [1, -2], [-1, 2]], "integers from -1 on, got int64 from -2 on"),
    ],
)
def test_from_split_rejects_labels_that_are_no_classes(labels, message):
    split = SimpleNamespace(
        inputs=np.ones((3, 2), np.int32),
        lengths=np.full(3, 2),
        labels=np.array(labels),
        pairs=None,
    )
    with pytest.raises(ConfigError, match=message):
        HostSplit.from_split(split)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_from_split_makes_int32_of_labels(dtype):
    """As the loss needs them; a comparison of arrays gives booleans."""
    split = SimpleNamespace(
        inputs=np.ones((3, 2), np.int32),
        lengths=np.full(3, 2),
        labels=np.array([0, 1, 1], dtype),
        pairs=None,
    )
    labels = HostSplit.from_split(split).labels
    assert labels.dtype == np.int32
    assert labels.tolist() == [0, 1, 1]


def test_from_split_takes_no_examples_whose_labels_have_no_type():
    """numpy makes floats of an empty list; `open_run` says which split is empty."""
    split = SimpleNamespace(
        inputs=np.ones((0, 2), np.int32),
        lengths=np.ones(0, int),
        labels=[],
        pairs=None,
    )
    assert HostSplit.from_split(split).num_examples == 0


def make_split(pairs=None, lengths=(3, 2, 1)) -> HostSplit:
    """Three rows of up to three tokens."""
    split = SimpleNamespace(
        inputs=np.array([[1, 2, 3], [4, 5, 0], [6, 0, 0]], np.uint8),
        lengths=lengths,
        labels=np.array([0, 1, 2], np.int32),
        pairs=pairs,
    )
    return HostSplit.from_split(split)


def test_chunk_reads_only_the_rows_of_its_batches(tmp_path):
    tokens = np.arange(1, 15, dtype=np.uint16).reshape(7, 2)
    tokens.tofile(tmp_path / "rows")
    inputs = np.memmap(tmp_path / "rows", np.uint16, "r", shape=tokens.shape)
    ones = np.ones(7, np.int32)
    split = SimpleNamespace(inputs=inputs, lengths=ones, labels=ones, pairs=None)
    batches = np.array([[6, 2], [0, 5], [3, 3]], np.int32)

    chunk = HostSplit.from_split(split).chunk(batches)
    assert chunk.num_batches == 3
    assert chunk.rows.inputs.shape == (2 * MAX_CHUNK, 2)
    np.testing.assert_array_equal(chunk.rows.inputs[:6], tokens[batches.ravel()])
    assert not chunk.rows.inputs[6:].any()

    batch = chunk.rows.take(chunk.places[1], jnp.ones(2))
    np.testing.assert_array_equal(batch.inputs, tokens[[0, 5]])
    np.testing.assert_array_equal(batch.example_ids, [0, 5])


def test_chunk_of_features_has_them_as_they_are_and_is_cut_along_the_length(
    monkeypatch,
):
    """Four batches of 2 × 3 × 5 numbers of two bytes are the most that has room."""
    monkeypatch.setattr(data, "MAX_CHUNK_BYTES", 4 * 60 + 59)
    features = np.random.default_rng(0).random((4, 3, 5)).astype(np.float16)
    lengths = np.array([2, 1, 2, 3])
    labels = np.array([0, 1, 1, 0])
    split = HostSplit.from_split(
        SimpleNamespace(inputs=features, lengths=lengths, labels=labels, pairs=None)
    )
    chunk = split.chunk(np.array([[2, 1]]))
    assert chunk.rows.inputs.shape == (4 * 2, 3, 5)
    batch = chunk.rows.take(chunk.places[0], jnp.ones(2), length=2)
    np.testing.assert_array_equal(batch.inputs, features[[2, 1], :2])
    assert batch.inputs.dtype == np.float16
    assert batch.mask is not None
    np.testing.assert_array_equal(batch.mask, [[1, 1], [1, 0]])
    by_length = eval_batches(split, batch_size=2, length_buckets=3)
    assert [batches.length for batches in by_length] == [2, 3]


def test_chunk_has_room_for_the_rows_of_at_least_one_batch(monkeypatch):
    """Batches of two examples have 6 bytes, and of two pairs 12."""
    pairs = np.array([[0, 2], [2, 1], [1, 1]], np.int32)
    monkeypatch.setattr(data, "MAX_CHUNK_BYTES", 30)
    assert make_split().chunk_room(2) == 5
    assert make_split(pairs).chunk_room(2) == 2
    monkeypatch.setattr(data, "MAX_CHUNK_BYTES", 5)
    assert make_split().chunk_room(2) == 1


def test_chunk_has_both_rows_of_each_pair():
    pairs = np.array([[0, 2], [2, 1], [1, 1]], np.int32)
    chunk = make_split(pairs).chunk(np.array([[2, 1]]))
    batch = chunk.rows.take(chunk.places[0], jnp.ones(2))
    np.testing.assert_array_equal(batch.inputs[1], [[6, 0, 0], [4, 5, 0]])
    np.testing.assert_array_equal(batch.mask[1], [[1, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(batch.labels, [2, 1])


def test_chunk_of_lists_and_of_rows_without_lengths_is_that_of_arrays():
    split = make_split(pairs=[[0, 2], [2, 1], [1, 1]], lengths=None)
    chunk = split.chunk(np.array([[2, 1]]))
    batch = chunk.rows.take(chunk.places[0], jnp.ones(2))
    np.testing.assert_array_equal(batch.inputs[1], [[6, 0, 0], [4, 5, 0]])
    assert batch.mask is None


class RecordedRows(np.ndarray):
    """Token ids that remember which rows were asked for in advance."""

    def prefetch(self, row_indices):
        self.prefetched = row_indices.tolist()


def test_prefetch_reads_both_rows_of_each_pair():
    inputs = np.zeros((6, 4), np.uint8).view(RecordedRows)
    labels = np.zeros(3, np.int32)
    pairs = np.array([[0, 5], [1, 4], [2, 3]], np.int32)
    batches = np.array([[2, 0]], np.int32)
    HostSplit(inputs, None, labels, pairs).prefetch(batches)
    assert inputs.prefetched == [2, 3, 0, 5]
    HostSplit(inputs, None, labels, None).prefetch(batches)
    assert inputs.prefetched == [2, 0]


def test_example_lengths_are_the_same_on_the_host_and_the_devices():
    pairs = np.array([[0, 2], [2, 1], [1, 1]], np.int32)
    for split, expected in (
        (make_split(), [3, 2, 1]),
        (make_split(pairs), [3, 2, 2]),
        (make_split(lengths=(3, 3, 3)), [3, 3, 3]),
    ):
        np.testing.assert_array_equal(split.example_lengths(), expected)
        on_devices = split.put().example_lengths(jnp.arange(3))
        np.testing.assert_array_equal(on_devices, expected)


def test_take_gives_tokens_labels_weights_and_numbers():
    batch = make_split().put().take(jnp.array([2, 1]), jnp.array([1.0, 0.0]))
    assert batch.inputs.dtype == jnp.int32
    np.testing.assert_array_equal(batch.inputs, [[6, 0, 0], [4, 5, 0]])
    np.testing.assert_array_equal(batch.labels, [2, 1])
    np.testing.assert_array_equal(batch.weights, [1, 0])
    np.testing.assert_array_equal(batch.example_ids, [2, 1])


def test_take_gives_a_mask_where_some_row_has_padding():
    """Elsewhere a mask would only cost time."""
    places = jnp.array([2, 1])
    batch = make_split().put().take(places, jnp.ones(2))
    np.testing.assert_array_equal(batch.mask, [[1, 0, 0], [1, 1, 0]])
    full_rows = make_split(lengths=(3, 3, 3)).put()
    assert full_rows.take(places, jnp.ones(2)).mask is None


def test_bucket_lengths_are_even_steps_that_end_at_the_longest():
    assert bucket_lengths(2000, 4) == (500, 1000, 1500, 2000)
    assert bucket_lengths(10, 4) == (3, 5, 8, 10)
    assert bucket_lengths(2, 8) == (1, 2)
