"""Longformer: a band of exactly window + 1 tokens, and global tokens both ways."""

import numpy as np
import pytest

from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


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
    [
        (1, 2, 0),
        (11, 4, 13),
        (31, 6, 0),
        (67, 2, 1),
        (101, 14, 3),
        (101, 70, 2),
        (31, 1000, 0),
    ],
)
def test_longformer_is_the_paper(length, window, num_global, scale):
    qkv = [normal(i, length, H, scale=scale) for i in range(3)]
    mask = np.random.default_rng(1).random(length) < 0.8
    mask[length // 2] = True
    options = {"window": window, "num_global": num_global}
    actual = one_head("longformer", *qkv, mask, "float64", **options)
    expected = reference(*qkv, mask, **options)
    assert np.isfinite(actual).all()
    assert relative_error(actual[mask], expected[mask]) <= TOLERANCE["float64"]
