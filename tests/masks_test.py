"""Masks: what they broadcast to, ranks and positions, queries that do not count."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.masks import (
    check_key_mask,
    first_valid_positions,
    ranks,
    zero_garbage,
)
from tests.attention.cases import skip_without_float16

# Batch and keys.
B = 2
S = 5
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)
FIRST_EXAMPLE = np.array([True, False])


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (MASK[:, None, None, :], MASK),
        (MASK[0], [MASK[0], MASK[0]]),
        (MASK[:1, None, None, :], [MASK[0], MASK[0]]),
        (FIRST_EXAMPLE[:, None, None, None], [np.ones(S, bool), np.zeros(S, bool)]),
        (np.array(False), np.zeros((B, S), bool)),
    ],
    ids=["[B,1,1,S]", "[S]", "[1,1,1,S]", "[B,1,1,1]", "[]"],
)
def test_key_mask_broadcasts(mask, expected):
    np.testing.assert_array_equal(check_key_mask(mask, B, S), expected)


@pytest.mark.parametrize("length", [1, 7, 1024, 1031, 5003])
def test_ranks_count_what_came_before(length):
    mask = np.random.default_rng(length).random(length) < 0.6
    np.testing.assert_array_equal(ranks(jnp.asarray(mask)), np.cumsum(mask))


def test_first_valid_positions_are_the_first_positions_and_then_the_last_token():
    mask = jnp.array([False, True, True, False, True, False])
    assert first_valid_positions(mask, 2).tolist() == [1, 2]
    assert first_valid_positions(mask, 5).tolist() == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_queries_of_padding_become_zero_where_they_are_not_ordinary(dtype):
    """In float16, too, whose largest number is 65,504."""
    if dtype == "float16":
        skip_without_float16()
    numbers = jnp.asarray([1.0, jnp.nan, jnp.inf, 3.0], dtype)
    query = numbers[None, :, None, None]
    mask = jnp.array([[True, False, False, False]])
    np.testing.assert_array_equal(zero_garbage(query, mask).ravel(), [1, 0, 0, 3])
