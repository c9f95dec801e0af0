"""What a mask may say, and that padding has no influence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.masking import key_mask, zero_padding

B, T, S, N, H = 2, 3, 5, 7, 11
QUERY, KEY = np.ones((B, T, N, H)), np.ones((B, S, N, H))
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)


def check(mask, query=QUERY, key=KEY, value=KEY, bias=None, is_causal=False):
    return key_mask(query, key, value, bias=bias, mask=mask, is_causal=is_causal)


def test_no_mask_stays_none():
    assert check(None) is None


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (MASK[:, None, None, :], MASK),
        (MASK[0], [MASK[0], MASK[0]]),
        (MASK[:1, None, None, :], [MASK[0], MASK[0]]),
        (np.array([True, False])[:, None, None, None], [[True] * S, [False] * S]),
        (np.array(False), [[False] * S] * B),
    ],
    ids=["[B,1,1,S]", "[S]", "[1,1,1,S]", "[B,1,1,1]", "[]"],
)
def test_what_broadcasts_becomes_a_mask_of_keys(mask, expected):
    np.testing.assert_array_equal(check(mask), expected)


@pytest.mark.parametrize(
    "shape",
    [(B, S), (B, 1, T, S), (B, N, 1, S), (1, 1, 1, T), (3, 1, 1, S), (1, B, 1, 1, S)],
    ids=str,
)
def test_a_mask_that_does_not_fit_is_refused_with_its_shape(shape):
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(")[:-1]):
        check(np.ones(shape, bool))


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_a_mask_of_numbers_is_refused(dtype):
    with pytest.raises(ValueError, match=np.dtype(dtype).name):
        check(np.ones((B, 1, 1, S), dtype))


@pytest.mark.parametrize(
    "shapes",
    [
        {"query": np.ones((T, N, H))},
        {"query": np.ones((B + 1, T, N, H))},
        {"query": np.ones((B, T, 1, H))},
        {"query": np.ones((B, T, N, 1))},
        {"value": np.ones((B, T, N, H))},
        {"value": np.ones((B, S, 1, H))},
    ],
)
def test_inputs_that_disagree_are_refused(shapes):
    [shape] = [x.shape for x in shapes.values()]
    with pytest.raises(ValueError, match=str(shape).replace("(", r"\(")[:-1]):
        check(None, **shapes)


def test_bias_and_causality_are_refused_even_without_a_mask():
    with pytest.raises(ValueError, match=r"bias.*\(1, 1, 3, 5\)"):
        check(None, bias=np.ones((1, 1, T, S)))
    with pytest.raises(ValueError, match="is_causal"):
        check(None, is_causal=True)


def test_zero_padding_stops_values_and_gradients_of_padding():
    x = jnp.where(MASK[:, :, None, None], KEY, jnp.nan)

    def loss(query, key, value):
        return sum((y * y).sum() for y in zero_padding(query, key, value, MASK))

    for y in zero_padding(x, x, x, MASK):
        np.testing.assert_array_equal(y, KEY * MASK[:, :, None, None])
    for grad in jax.grad(loss, argnums=(0, 1, 2))(x, x, x):
        np.testing.assert_array_equal(grad, 2 * KEY * MASK[:, :, None, None])


def test_queries_of_another_sequence_are_not_masked():
    query, key, _ = zero_padding(QUERY, KEY, KEY, MASK)
    assert query is QUERY
    assert not key[~MASK].any()
    assert zero_padding(QUERY, KEY, KEY, None)[1] is KEY
