"""BigBird: which blocks meet, and that nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.bigbird import choose_blocks
from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5
make_table = jax.jit(choose_blocks, static_argnums=1)


def window_and_ends(block, first, last):
    """The block, its neighbours if they exist, and the first and the last one."""
    window = range(max(block - 1, first), min(block + 1, last) + 1)
    return {first, last, *window}


def sets_of_blocks(valid, num_random_blocks, seed=0):
    """Every block's set of blocks, from the table; no block stands in it twice."""
    table, exists, _ = make_table(jnp.asarray(valid), num_random_blocks, seed)
    sets = []
    for row, row_exists in zip(np.asarray(table), np.asarray(exists), strict=True):
        blocks = list(row[row_exists])
        assert len(set(blocks)) == len(blocks)
        sets.append(set(blocks))
    return sets


@pytest.mark.parametrize("num_random_blocks", [0, 3])
@pytest.mark.parametrize(
    ("first", "last", "num_blocks"),
    [(0, 0, 1), (0, 1, 2), (0, 0, 7), (0, 3, 4), (0, 10, 13), (2, 16, 17)],
)
def test_choose_blocks(first, last, num_blocks, num_random_blocks):
    index = np.arange(num_blocks)
    is_valid = (first <= index) & (index <= last)
    sets = sets_of_blocks(is_valid, num_random_blocks)
    for block in range(first, last + 1):
        fixed_blocks = window_and_ends(block, first, last)
        free_blocks = set(range(first, last + 1)) - fixed_blocks
        random_blocks = sets[block] - fixed_blocks
        assert fixed_blocks <= sets[block]
        assert random_blocks <= free_blocks
        assert len(random_blocks) == min(num_random_blocks, len(free_blocks))


def test_choose_blocks_draws_uniformly():
    """Block 5 of 11 has 4, 5, 6, 0 and 10; two of the six others are drawn."""
    num_draws = 3000
    free_blocks = [1, 2, 3, 7, 8, 9]

    def random_blocks_of_5(seed):
        blocks, _, _ = choose_blocks(jnp.ones(11, bool), 2, seed)
        return blocks[5, 5:]

    draw = jax.jit(jax.vmap(random_blocks_of_5))
    random_blocks = np.asarray(draw(jnp.arange(num_draws)))
    counts = np.bincount(random_blocks.ravel(), minlength=11)
    free_counts = counts[free_blocks]
    assert counts.sum() == free_counts.sum()

    probability = 2 / len(free_blocks)
    deviation = np.sqrt(num_draws * probability * (1 - probability))
    assert abs(free_counts - num_draws * probability).max() < 5 * deviation


def test_choose_blocks_draws_for_each_block_anew():
    """One draw for all of them would have neighbours see nearly the same block."""
    blocks, _, _ = make_table(jnp.ones(101, bool), 1, 0)
    random_blocks = np.asarray(blocks[2:-2, 5])
    assert len(np.unique(random_blocks)) > 40


def test_choose_blocks_has_the_fixed_blocks_of_its_docstring():
    blocks, exists, _ = make_table(jnp.ones(9, bool), 1, 0)
    np.testing.assert_array_equal(blocks[5, :5], [4, 5, 6, 0, 8])
    np.testing.assert_array_equal(blocks[1, :5], [0, 1, 2, 0, 8])
    np.testing.assert_array_equal(exists[1], [True, True, True, False, True, True])


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize(
    ("length", "valid_length", "block_size", "num_random_blocks", "seed"),
    [
        (1, 1, 3, 1, 0),
        (31, 31, 1, 2, 0),
        (67, 43, 5, 1, 3),
        (67, 30, 64, 3, 0),
        (31, 29, 3, 8, 0),
    ],
)
def test_bigbird_is_the_paper(
    length, valid_length, block_size, num_random_blocks, seed, scale
):
    """Token by token, given the sets of blocks; holes in the mask too."""
    query, key, value = normal(0, 3, length, H, scale=scale)
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[[0, valid_length - 1]] = True
    mask[valid_length:] = False

    last_block = (valid_length - 1) // block_size
    sets = sets_of_blocks(np.ones(last_block + 1, bool), num_random_blocks, seed)
    # The first and the last block see everything.
    sets[0] = set(range(last_block + 1))
    sets[last_block] = sets[0]
    valid = np.flatnonzero(mask)
    expected = np.zeros((length, H))
    for t in valid:
        keys = [s for s in valid if s // block_size in sets[t // block_size]]
        expected[t] = paper.attention(query[t : t + 1], key, value, keys)[0]

    actual = one_head(
        "bigbird",
        query,
        key,
        value,
        mask,
        block_size=block_size,
        num_random_blocks=num_random_blocks,
        seed=seed,
    )
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]
