"""Blocks of a sequence, with and without margins."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.blocks import to_blocks, to_blocks_with_margins


@pytest.mark.parametrize("length", [1, 5, 6, 13])
def test_blocks_hold_every_token_once_and_then_zeros(length):
    x = np.arange(1, 2 * length + 1).reshape(length, 2)
    blocks = np.asarray(to_blocks(jnp.asarray(x), 5))
    assert blocks.shape == (-(-length // 5), 5, 2)
    flat = blocks.reshape(-1, 2)
    np.testing.assert_array_equal(flat[:length], x)
    assert not flat[length:].any()


@pytest.mark.parametrize("length", [1, 5, 13, 23])
@pytest.mark.parametrize(("size", "margin"), [(5, 0), (5, 2), (5, 5), (7, 3)])
def test_margins_are_the_neighbours_and_zeros_beyond_the_ends(length, size, margin):
    x = np.arange(1, 2 * length + 1).reshape(length, 2)
    blocks = to_blocks_with_margins(jnp.asarray(x), size, margin)
    num_blocks = -(-length // size)
    # Zeros stand in front, and behind to the margin of the last block.
    room_behind = num_blocks * size - length + margin
    padded = np.pad(x, ((margin, room_behind), (0, 0)))
    assert len(blocks) == num_blocks
    for c, block in enumerate(blocks):
        expected = padded[c * size : c * size + size + 2 * margin]
        np.testing.assert_array_equal(block, expected)
