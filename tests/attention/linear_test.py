"""Linear attention against its sums written out, one query and one key at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.attention.cases import compiled, normal
from tests.tolerance import TOLERANCE, relative_error

B, N, H = 2, 3, 5


def feature(x):
    """ELU + 1 of a vector: x + 1 above zero, eˣ below."""
    return np.array([y + 1 if y > 0 else np.exp(y) for y in x])


def reference(query, key, value, mask):
    """Eq. (4) of Katharopoulos et al.: a weight φ(q)·φ(k) for every valid pair."""
    out = np.zeros((*query.shape[:3], value.shape[-1]))
    for b, t, n in np.ndindex(out.shape[:3]):
        total = 0.0
        for s in np.flatnonzero(mask[b]):
            weight = feature(query[b, t, n]) @ feature(key[b, s, n])
            out[b, t, n] += weight * value[b, s, n]
            total += weight
        out[b, t, n] /= total
    return out


def attend(query, key, value, mask, dtype="float32"):
    with jax.enable_x64(dtype == "float64"):
        qkv = [jnp.asarray(x, dtype) for x in (query, key, value)]
        return np.asarray(compiled("linear")(*qkv, None, mask[:, None, None]))


@pytest.mark.parametrize("num_queries", [13, 7])
def test_equals_the_sums_written_out(num_queries):
    mask = np.array([np.arange(13) < 11, np.arange(13) % 3 != 1])
    for scale in (0.1, 1.0, 4.0):
        query = normal(0, B, num_queries, N, H, scale=scale)
        key, value = normal(1, B, 13, N, H, scale=scale), normal(2, B, 13, N, H)
        out = attend(query, key, value, mask, "float64")
        expected = reference(query, key, value, mask)
        for b, valid in enumerate(mask if num_queries == 13 else [slice(None)] * B):
            error = relative_error(out[b, valid], expected[b, valid])
            assert error <= TOLERANCE["float64"]


def test_features_far_below_zero_keep_their_digits():
    """ELU(−20) + 1 in float32 is −1 + 1 = 0, where e⁻²⁰ is meant."""
    query, key = normal(0, 1, 7, 1, H) - 20, normal(1, 1, 7, 1, H) - 20
    value, mask = normal(2, 1, 7, 1, H), np.ones((1, 7), bool)
    out = attend(query, key, value, mask)
    expected = reference(query, key, value, mask)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


def test_features_of_nothing_are_finite():
    """Where even e^x underflows there are no weights, and no NaN."""
    x = np.full((1, 7, 1, H), -1e3)
    out = attend(x, x, normal(0, *x.shape), np.ones((1, 7), bool))
    assert np.isfinite(out).all()
