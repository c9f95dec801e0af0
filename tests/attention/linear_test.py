"""Linear and efficient attention against their formulas, in float64."""

import jax
import numpy as np
import pytest

from nystromformer.attention.linear import elu_plus_one
from tests import paper
from tests.attention.cases import normal, one_head
from tests.tolerance import TOLERANCE, relative_error

H = 5


def linear(query, key, value, mask):
    """Eq. (4) of Katharopoulos et al.: a weight φ(q)·φ(k) for every valid pair."""

    def feature(x):
        return np.where(x > 0, x + 1, np.exp(x))

    weights = feature(query) @ feature(key).T * mask
    return weights @ value / weights.sum(1, keepdims=True)


def efficient(query, key, value, mask):
    """ρ_q(Q) (ρ_k(K)ᵀ V) of Shen et al.: over features, and over valid tokens."""
    return paper.softmax(query) @ (paper.softmax(key[mask].T) @ value[mask])


@pytest.mark.parametrize("reference", [linear, efficient])
@pytest.mark.parametrize("scale", [0.1, 1, 4])
@pytest.mark.parametrize("num_queries", [31, 7])
def test_attention_of_linear_cost_is_the_paper(num_queries, scale, reference):
    query = normal(0, num_queries, H, scale=scale)
    key = normal(1, 31, H, scale=scale)
    value = normal(2, 31, H)
    mask = np.arange(31) % 3 != 1
    expected = reference(query, key, value, mask)
    actual = one_head(reference.__name__, query, key, value, mask)
    rows = mask if num_queries == 31 else slice(None)
    assert relative_error(actual[rows], expected[rows]) <= TOLERANCE["float64"]


def test_elu_plus_one_keeps_its_digits_far_below_zero():
    """ELU(−20) + 1 in float32 is −1 + 1 = 0, where e⁻²⁰ is meant."""
    query = normal(0, 7, H) - 20
    key = normal(1, 7, H) - 20
    value = normal(2, 7, H)
    out = one_head("linear", query, key, value, np.ones(7, bool), "float32")
    expected = linear(query, key, value, np.ones(7))
    assert relative_error(out, expected) <= TOLERANCE["float32"]


def test_elu_plus_one_has_a_slope_of_1_at_0():
    """Queries and keys are 0 at the start where the input of a layer is."""
    slope = jax.grad(elu_plus_one)
    assert [float(slope(x)) for x in (0.0, 2.0, 200.0)] == [1, 1, 1]
    np.testing.assert_allclose(slope(-2.0), np.exp(-2.0), rtol=1e-6)
