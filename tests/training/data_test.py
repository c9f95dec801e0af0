"""Batches: pure functions of (seed, epoch, k)."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.errors import ConfigError
from nystromformer.training.data import MAX_CHUNK, Data, train_indices


def test_train_indices_of_an_epoch_are_a_permutation_less_its_remainder():
    indices = train_indices(7, 0, 2 * 8, num_examples=103, batch_size=12)
    first, second = (set(x.ravel()) for x in np.split(indices, 2))
    assert len(first) == len(second) == 96
    assert first | second <= {*range(103)}
    assert first != second


def test_train_indices_do_not_depend_on_where_the_run_was_resumed():
    whole = train_indices(7, 0, 30, 103, 12)
    parts = [train_indices(7, start, 5, 103, 12) for start in range(0, 30, 5)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, train_indices(8, 0, 30, 103, 12))


def test_train_indices_reject_a_batch_over_the_examples():
    with pytest.raises(ConfigError, match=r"train\.batch_size=12 is over the 5"):
        train_indices(7, 0, 3, num_examples=5, batch_size=12)


@pytest.mark.parametrize(
    "inputs", [np.full((3, 2), 0.9, np.float32), np.ones((3, 2, 4), np.int32)]
)
def test_data_of_rejects_features(inputs):
    ones = np.ones(3, np.int32)
    split = SimpleNamespace(inputs=inputs, lengths=ones, labels=ones, pairs=None)
    with pytest.raises(ConfigError, match=rf"token ids.*{inputs.dtype}.*examples/bags"):
        Data.of(split)


def test_train_indices_have_an_order_of_their_own_for_each_seed_and_epoch():
    """Seed 1 does not begin with what seed 0 goes on with, nor the other way round."""
    epochs = [
        train_indices(seed, 8 * epoch, 8, 103, 12).tobytes()  # of 8 steps
        for seed in range(5)
        for epoch in range(5)
    ]
    assert len({*epochs}) == 5 * 5


def make_split(pairs=None):
    return SimpleNamespace(
        inputs=np.array([[1, 2, 3], [4, 5, 0], [6, 0, 0]], np.uint8),
        lengths=np.array([3, 2, 1], np.int32),
        labels=np.array([0, 1, 2], np.int32),
        pairs=pairs,
    )


def test_chunk_reads_only_the_rows_of_its_batches(tmp_path):
    rows = np.arange(1, 15, dtype=np.uint16).reshape(7, 2)
    rows.tofile(tmp_path / "rows")
    inputs = np.memmap(tmp_path / "rows", np.uint16, "r", shape=rows.shape)
    ones = np.ones(7, np.int32)
    split = SimpleNamespace(inputs=inputs, lengths=ones, labels=ones, pairs=None)
    indices = np.array([[6, 2], [0, 5], [3, 3]], np.int32)
    part, here, count = Data.of(split).chunk(indices)
    assert (part.inputs.shape, int(count)) == ((2 * MAX_CHUNK, 2), 3)
    np.testing.assert_array_equal(part.inputs[:6], rows[indices.ravel()])
    assert not part.inputs[6:].any()
    np.testing.assert_array_equal(part.take(here[1], ones[:2]).inputs, rows[[0, 5]])
    np.testing.assert_array_equal(part.take(here[1], ones[:2]).indices, [0, 5])


def test_chunk_has_both_rows_of_each_pair():
    pairs = np.array([[0, 2], [2, 1], [1, 1]], np.int32)
    data, here, _ = Data.of(make_split(pairs)).chunk(np.array([[2, 1]]))
    batch = data.take(here[0], jnp.ones(2))
    np.testing.assert_array_equal(batch.inputs[1], [[6, 0, 0], [4, 5, 0]])
    np.testing.assert_array_equal(batch.mask[1], [[1, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(batch.labels, [2, 1])


def test_take_gives_tokens_labels_weights_and_a_mask_where_lengths_differ():
    batch = Data.of(make_split()).put().take(jnp.array([2, 1]), jnp.array([1.0, 0.0]))
    assert batch.inputs.dtype == jnp.int32
    np.testing.assert_array_equal(batch.inputs, [[6, 0, 0], [4, 5, 0]])
    np.testing.assert_array_equal(batch.mask, [[1, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(batch.labels, [2, 1])
    np.testing.assert_array_equal(batch.weights, [1, 0])
    np.testing.assert_array_equal(batch.indices, [2, 1])
    split = make_split()
    split.lengths[:] = 3
    batch = Data.of(split).put().take(jnp.array([0]), jnp.ones(1))
    assert batch.mask is None  # all are full, and nothing pays for saying so
