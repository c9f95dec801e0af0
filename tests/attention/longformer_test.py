"""Longformer: a band of exactly window + 1 tokens, and global tokens both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import paper
from tests.attention.cases import compiled, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def inputs(length, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=(length, H)) for _ in range(3)]


def reference(query, key, value, mask, window, num_global):
    """Beltagy et al., section 3.1, token by token."""
    valid = [s for s in range(len(key)) if mask[s]]
    everywhere = valid[:num_global]
    out = np.zeros_like(value)
    for t in valid:
        seen = [
            s
            for s in valid
            if abs(t - s) <= window // 2 or s in everywhere or t in everywhere
        ]
        out[t] = paper.attention(query[t : t + 1], key, value, seen)[0]
    return out


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize(
    ("length", "window", "num_global"),
    [(1, 2, 0), (11, 4, 13), (31, 6, 0), (67, 2, 1), (101, 14, 3), (101, 70, 2)],
)
def test_is_the_paper(length, window, num_global, scale):
    qkv = inputs(length, scale)
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[length // 2] = True
    options = {"window": window, "num_global": num_global}
    actual = one_head("longformer", *qkv, mask, "float64", **options)
    expected = reference(*qkv, mask, **options)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]


def weights(length, **options):
    """[T, S]: with the identity as values the output is the weights."""
    query, key, _ = inputs(length)
    return one_head(
        "longformer", query, key, np.eye(length), np.ones(length, bool), **options
    )


@pytest.mark.parametrize("window", [2, 6, 64, 70])
def test_the_band_is_window_plus_one_wide(window):
    length = 149
    t, s = np.indices((length, length))
    seen = weights(length, window=window) > 0
    np.testing.assert_array_equal(seen, abs(t - s) <= window // 2)
    assert seen[length // 2].sum() == window + 1
    assert seen[0].sum() == seen[-1].sum() == window // 2 + 1


def test_global_tokens_see_all_and_are_seen_by_all():
    seen = weights(67, window=4, num_global=3) > 0
    t, s = np.indices((67, 67))
    np.testing.assert_array_equal(seen, (abs(t - s) <= 2) | (t < 3) | (s < 3))


@pytest.mark.parametrize("window", [60, 62, 1000])
def test_a_window_over_everything_is_softmax_attention(window):
    query, key, value = inputs(31)
    mask = np.arange(31) < 29
    out = one_head("longformer", query, key, value, mask, window=window)
    expected = paper.attention(query, key, value, list(range(29)))
    assert relative_error(out[:29], expected[:29]) <= TOLERANCE["float32"]


def test_the_window_of_the_default_is_table_1():
    assert (weights(509)[254] > 0).sum() == 257


def test_memory_with_global_tokens_doubles_with_length():
    def temporary_bytes(length):
        def total(x):
            return compiled("longformer", window=64, num_global=3)(x, x, x).sum()

        x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
        program = jax.jit(jax.grad(total)).lower(x).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(8192) <= 2.2 * temporary_bytes(4096)
