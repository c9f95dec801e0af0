"""Efficient attention against its two softmaxes in float64, over valid tokens."""

import numpy as np
import pytest

from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize("num_queries", [31, 7])
def test_efficient_attention_is_the_paper(num_queries, scale):
    """ρ_q(Q) (ρ_k(K)ᵀ V) of Shen et al.: over features, and over valid tokens."""
    query, key = (normal(i, n, H, scale=scale) for i, n in enumerate((num_queries, 31)))
    value, mask = normal(2, 31, H), np.arange(31) % 3 != 1
    of_keys = paper.softmax(key[mask].T)  # [H, n valid]
    expected = paper.softmax(query) @ (of_keys @ value[mask])
    actual = one_head("efficient", query, key, value, mask)
    rows = mask if num_queries == 31 else slice(None)
    assert relative_error(actual[rows], expected[rows]) <= TOLERANCE["float64"]
