"""Longformer: a band of exactly window + 1 tokens, and global tokens both ways."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention import make_attention
from nystromformer.attention.longformer import longformer_attention
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

H = 5


def inputs(length, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=(length, H)) for _ in range(3)]


@functools.cache
def compiled(**options):
    return jax.jit(functools.partial(longformer_attention, **options))


def attend(query, key, value, mask, dtype="float32", **options):
    """`longformer_attention` of one head of one sequence."""
    with jax.enable_x64(dtype == "float64"):
        x = [jnp.asarray(a, dtype)[None, :, None] for a in (query, key, value)]
        out = compiled(**options)(*x, None, jnp.asarray(mask)[None, None, None])
        return np.asarray(out)[0, :, 0]


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize(
    ("length", "window", "num_global"),
    [(1, 2, 0), (11, 4, 13), (31, 6, 0), (67, 2, 1), (101, 14, 3), (101, 70, 2)],
)
def test_is_the_paper(length, window, num_global, scale, dtype):
    qkv = inputs(length, scale)
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[length // 2] = True
    options = {"window": window, "num_global": num_global}
    actual = attend(*qkv, mask, dtype, **options)
    expected = reference(*qkv, mask, **options)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE[dtype]


def weights(length, **options):
    """[T, S]: with the identity as values the output is the weights."""
    query, key, _ = inputs(length)
    return attend(query, key, np.eye(length), np.ones(length, bool), **options)


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
    out = attend(query, key, value, mask, window=window)
    expected = paper.attention(query, key, value, list(range(29)))
    assert relative_error(out[:29], expected[:29]) <= TOLERANCE["float32"]


def test_the_window_of_the_default_is_table_1():
    assert (weights(509)[254] > 0).sum() == 257


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"window": 7}, "window must be even and at least 2.*got 7"),
        ({"window": 0}, "window must be even and at least 2.*got 0"),
        ({"window": -2}, "window must be even and at least 2.*got -2"),
        ({"num_global": -1}, "num_global must be 0 or more, got -1"),
    ],
)
def test_senseless_options_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        attend(*inputs(7), np.ones(7, bool), **options)
    with pytest.raises(ValueError, match=text):
        make_attention(
            "longformer", num_heads=1, head_dim=H, max_length=7, rngs=None, **options
        )


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "gradient"])
def test_memory_with_global_tokens_doubles_with_length(backward):
    def temporary_bytes(length):
        def function(x):
            return longformer_attention(x, x, x, window=64, num_global=3).sum()

        x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
        compiled = jax.jit(jax.grad(function) if backward else function).lower(x)
        return compiled.compile().memory_analysis().temp_size_in_bytes

    sizes = [temporary_bytes(length) for length in (2048, 4096, 8192)]
    assert sizes[1] <= 2.2 * sizes[0]
    assert sizes[2] <= 2.2 * sizes[1]
