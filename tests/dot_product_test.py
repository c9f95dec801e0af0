"""Exact attention of one head against numpy, where a computer's numbers end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.dot_product import MAX_KEYS_BY_COLUMNS, attend
from tests import paper
from tests.attention.cases import normal
from tests.tolerance import TOLERANCE, relative_error


def attend_in_float32(*arrays):
    return jax.jit(attend)(*[jnp.asarray(x, "float32") for x in arrays])


def test_attend_survives_scores_whose_exponential_overflows():
    query = normal(3, 13, 5, scale=1e3)
    key = normal(4, 29, 5)
    value = normal(5, 29, 5)
    out = attend_in_float32(query, key / np.sqrt(5), value)
    expected = value[(query @ key.T).argmax(1)]
    assert relative_error(out, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("length", [4098, 8192])
def test_attend_sums_many_keys_as_numpy(length):
    """Sums over more keys than MAX_KEYS_BY_COLUMNS keep their digits."""
    assert length > MAX_KEYS_BY_COLUMNS
    query = normal(0, 3, 5)
    key = normal(1, length, 5)
    value = normal(2, length, 5)
    expected = paper.softmax(query @ key.T) @ value
    out = attend_in_float32(query, key, value)
    assert relative_error(out, expected) <= TOLERANCE["float32"]
