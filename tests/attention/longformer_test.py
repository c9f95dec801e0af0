"""Longformer: a band of exactly window + 1 tokens."""

import numpy as np
import pytest

from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def reference(query, key, value, mask, window):
    """Beltagy et al., section 3.1, token by token."""
    out = np.zeros_like(value)
    valid = np.flatnonzero(mask)
    for t in valid:
        keys = [s for s in valid if abs(t - s) <= window // 2]
        out[t] = paper.attention(query[t : t + 1], key, value, keys)[0]
    return out


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize(
    ("length", "window"),
    [(1, 2), (11, 4), (31, 6), (67, 2), (101, 14), (101, 70), (31, 1000)],
)
def test_longformer_is_the_paper(length, window, scale):
    query, key, value = normal(0, 3, length, H, scale=scale)
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[length // 2] = True
    actual = one_head("longformer", query, key, value, mask, window=window)
    expected = reference(query, key, value, mask, window)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]
