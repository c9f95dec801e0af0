"""Dropout: its mean, what it keeps, and what shares a draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.dropout import dropout, random_words

KEY = jax.random.key(1)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    count = 10**5
    out = np.asarray(dropout(jnp.ones(count), rate, KEY))
    kept = out != 0
    deviation = np.sqrt(rate * (1 - rate) / count)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    np.testing.assert_allclose(out[kept], 1 / (1 - rate), rtol=2**-15)
    assert dropout(jnp.ones(3, jnp.bfloat16), rate, KEY).dtype == jnp.bfloat16


def test_dropout_of_rate_zero_or_without_a_key_is_the_identity():
    x = jnp.arange(5.0)
    assert dropout(x, 0.0, KEY) is x
    assert dropout(x, 0.3, None) is x


def test_each_number_has_its_own_draw_but_along_the_dimensions_that_share_one():
    x = jnp.ones((3, 2, 31, 37))
    own = np.asarray(dropout(x, 0.5, KEY)).reshape(6, -1)
    agreement = np.corrcoef(own) - np.eye(6)
    assert abs(agreement).max() < 5 / np.sqrt(31 * 37)
    shared = np.asarray(dropout(x, 0.5, KEY, broadcast_dims=(0, 1)))
    np.testing.assert_array_equal(shared, np.broadcast_to(shared[:1, :1], x.shape))
    assert (shared[0, 0] == 0).any()
    assert (shared[0, 0] != 0).any()


def test_random_words_are_uniform_and_without_correlation():
    """Each bit, each 16-bit half, neighbours in position, and keys split from one."""
    count = 2**18
    words = np.stack([random_words(key, count) for key in jax.random.split(KEY, 4)])
    bits = np.unpackbits(words.view(np.uint8), axis=1).reshape(4, count, 32)
    assert abs(bits.mean(1) - 0.5).max() < 5 * 0.5 / np.sqrt(count)
    for half in words.view(np.uint16).reshape(8, -1):
        expected = half.size / 256
        for byte in (half & 255, half >> 8):
            chi2 = ((np.bincount(byte, minlength=256) - expected) ** 2 / expected).sum()
            assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
    signs = 2 * bits[0].astype(np.float32) - 1
    for lag in (1, 2, 3, 32, 64, 128, 2048):
        assert abs(signs[lag:].T @ signs[:-lag] / count).max() < 5 / np.sqrt(count)
    of_keys = (2 * bits.astype(np.float32) - 1).reshape(4, -1)
    correlation = of_keys @ of_keys.T / of_keys.shape[1] - np.eye(4)
    assert abs(correlation).max() < 5 / np.sqrt(of_keys.shape[1])
