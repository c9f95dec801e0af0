"""BigBird: which blocks meet, and that nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.bigbird import choose_blocks, draw_uniform
from tests import paper
from tests.attention.cases import make, normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5
make_table = jax.jit(choose_blocks)


def window_and_ends(block, first, last):
    """The block, its neighbours if they exist, and the first and the last one."""
    window = range(max(block - 1, first), min(block + 1, last) + 1)
    return {first, last, *window}


def uniform_numbers(num_blocks, num_random_blocks, seed=0, num_heads=1):
    """The numbers that choose random blocks, [num_heads, num_blocks, random blocks]."""
    shape = (num_heads, num_blocks, num_random_blocks)
    return draw_uniform(jax.random.key(seed), shape)


def sets_of_blocks(valid, uniform):
    """Every block's set of blocks, from the table; no block stands in it twice."""
    table, exists, _ = make_table(jnp.asarray(valid), uniform)
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
    [uniform] = uniform_numbers(num_blocks, num_random_blocks)
    sets = sets_of_blocks(is_valid, uniform)
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
        [uniform] = uniform_numbers(11, 2, seed)
        blocks, _, _ = choose_blocks(jnp.ones(11, bool), uniform)
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
    [uniform] = uniform_numbers(101, 1)
    blocks, _, _ = make_table(jnp.ones(101, bool), uniform)
    random_blocks = np.asarray(blocks[2:-2, 5])
    assert len(np.unique(random_blocks)) > 40


def test_choose_blocks_has_the_fixed_blocks_of_its_docstring():
    [uniform] = uniform_numbers(9, 1)
    blocks, exists, _ = make_table(jnp.ones(9, bool), uniform)
    np.testing.assert_array_equal(blocks[5, :5], [4, 5, 6, 0, 8])
    np.testing.assert_array_equal(blocks[1, :5], [0, 1, 2, 0, 8])
    np.testing.assert_array_equal(exists[1], [True, True, True, False, True, True])


def test_draw_uniform_is_independent_over_heads_and_blocks():
    uniform = np.asarray(uniform_numbers(40, 2, num_heads=3))
    assert len(np.unique(uniform)) == uniform.size
    assert abs(uniform.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / uniform.size)
    assert not np.isclose(uniform, uniform_numbers(40, 2, seed=1, num_heads=3)).any()


def test_draw_uniform_of_a_block_is_that_of_every_length():
    longer = uniform_numbers(11, 2)
    error = relative_error(uniform_numbers(7, 2), longer[:, :7])
    assert error <= TOLERANCE["same"]


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize(
    ("length", "valid_length", "block_size", "num_random_blocks"),
    [(1, 1, 3, 1), (31, 31, 1, 2), (67, 43, 5, 1), (67, 30, 64, 3), (31, 29, 3, 8)],
)
def test_bigbird_is_the_paper(
    length, valid_length, block_size, num_random_blocks, scale
):
    """Token by token, given the sets of blocks; holes in the mask too."""
    query, key, value = normal(0, 3, length, H, scale=scale)
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[[0, valid_length - 1]] = True
    mask[valid_length:] = False

    options = {"block_size": block_size, "num_random_blocks": num_random_blocks}
    [[uniform]] = make("bigbird", 1, H, 1024, **options).per_head(valid_length)
    last_block = (valid_length - 1) // block_size
    sets = sets_of_blocks(np.ones(last_block + 1, bool), uniform)
    # The first and the last block see everything.
    sets[0] = set(range(last_block + 1))
    sets[last_block] = sets[0]
    valid = np.flatnonzero(mask)
    expected = np.zeros((length, H))
    for t in valid:
        keys = [s for s in valid if s // block_size in sets[t // block_size]]
        expected[t] = paper.attention(query[t : t + 1], key, value, keys)[0]

    actual = one_head("bigbird", query, key, value, mask, **options)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]


def test_bigbird_has_random_blocks_of_its_own_in_each_head_and_attention():
    """Both heads get the same inputs, and see the blocks of their own numbers."""
    rngs = nnx.Rngs(0)
    sizes = {"num_heads": 2, "head_dim": H, "max_length": 67}
    options = {"block_size": 4, "num_random_blocks": 1}
    first = make_attention("bigbird", **sizes, **options, rngs=rngs)
    second = make_attention("bigbird", **sizes, **options, rngs=rngs)
    query, key, value = (jnp.asarray(x, jnp.float32) for x in normal(0, 3, 67, H))
    inputs = [jnp.stack([x, x], axis=1)[None] for x in (query, key, value)]
    outputs = first(*inputs)[0]
    [uniform] = first.per_head(67)
    for head in range(2):
        expected = first.attend(query, key, value, None, None, uniform[head])
        np.testing.assert_allclose(outputs[:, head], expected, rtol=1e-5, atol=1e-6)
    assert not np.isclose(outputs[:, 0], outputs[:, 1]).all()
    assert not np.isclose(outputs, second(*inputs)[0]).all()

    nnx.update(second, nnx.state(first))
    assert relative_error(second(*inputs)[0], outputs) <= TOLERANCE["same"]
