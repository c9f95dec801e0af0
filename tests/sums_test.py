"""A product with a long sum is that product, with fewer digits lost."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.sums import LONG, matmul_in_parts
from tests.tolerance import TOLERANCE, relative_error

A_LONG_PRIME = 5003  # no divisor: the sum stays whole


@pytest.mark.parametrize("length", [1, LONG, LONG + 1, LONG + 6, A_LONG_PRIME, 65_536])
def test_it_is_the_product(length):
    rng = np.random.default_rng(length)
    a, b = rng.random((3, length), np.float32), rng.random((length, 5), np.float32)
    found = matmul_in_parts(jnp.asarray(a), jnp.asarray(b))
    expected = a.astype(float) @ b.astype(float)
    assert relative_error(found, expected) <= TOLERANCE["float32"]


def test_terms_that_are_alike_are_added_without_loss():
    terms = jnp.resize(jnp.array([1, 0.36787944, 0.0183]), (1, 65_536))
    found = matmul_in_parts(terms, jnp.ones((65_536, 4)))
    expected = np.asarray(terms, float) @ np.ones((65_536, 4))
    assert relative_error(found, expected) <= TOLERANCE["float32"]
