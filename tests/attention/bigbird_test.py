"""BigBird: which blocks meet, and that nothing else does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.bigbird import attended_blocks
from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def window_and_ends(block, first, last):
    window = {b for b in (block - 1, block, block + 1) if first <= b <= last}
    return window | {first, last}


def sets_of_blocks(valid, num_random_blocks, seed=0):
    """Every block's set of blocks, from the table; no block stands in it twice."""
    table = jax.jit(attended_blocks, static_argnums=1)
    blocks, exists, _ = table(jnp.asarray(valid), num_random_blocks, seed)
    pairs = zip(np.asarray(blocks), np.asarray(exists), strict=True)
    rows = [list(b[e]) for b, e in pairs]
    assert all(len(set(row)) == len(row) for row in rows)
    return [set(row) for row in rows]


@pytest.mark.parametrize("num_random_blocks", [0, 3])
@pytest.mark.parametrize(
    ("first", "last", "num_blocks"),
    [(0, 0, 1), (0, 1, 2), (0, 0, 7), (0, 3, 4), (0, 10, 13), (2, 16, 17)],
)
def test_attended_blocks(first, last, num_blocks, num_random_blocks):
    index = np.arange(num_blocks)
    sets = sets_of_blocks((first <= index) & (index <= last), num_random_blocks)
    for block in range(first, last + 1):
        fixed = window_and_ends(block, first, last)
        free = set(range(first, last + 1)) - fixed
        assert fixed <= sets[block]
        assert sets[block] - fixed <= free
        assert len(sets[block] - fixed) == min(num_random_blocks, len(free))


def test_attended_blocks_draws_uniformly():
    draws, free = 3000, [1, 2, 3, 7, 8, 9]
    table = jax.vmap(lambda seed: attended_blocks(jnp.ones(11, bool), 2, seed)[0])
    random = np.asarray(table(jnp.arange(draws)))[:, 5, 5:]
    counts = np.bincount(random.ravel(), minlength=11)
    share = 2 / len(free)
    deviation = np.sqrt(draws * share * (1 - share))
    assert counts.sum() == counts[free].sum()
    assert abs(counts[free] - draws * share).max() < 5 * deviation


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
    qkv = [normal(i, length, H, scale=scale) for i in range(3)]
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[[0, valid_length - 1]] = True
    mask[valid_length:] = False
    options = {"block_size": block_size, "num_random_blocks": num_random_blocks}
    options["seed"] = seed
    last = (valid_length - 1) // block_size
    sets = sets_of_blocks(np.arange(last + 1) <= last, num_random_blocks, seed)
    valid = np.flatnonzero(mask)
    expected = np.zeros((length, H))
    for t in valid:
        block = t // block_size
        seen = [
            s for s in valid if s // block_size in sets[block] or block in (0, last)
        ]
        expected[t] = paper.attention(qkv[0][t : t + 1], *qkv[1:], seen)[0]
    actual = one_head("bigbird", *qkv, mask, "float64", **options)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]
