"""The product with a weight matrix: as JAX's own, gradients too."""

import jax
import numpy as np
import pytest

from nystromformer.dense import dense_dot_general


def plain(x, kernel):
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 5), (2, 3, 7, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_and_gradients_are_those_of_dot_general(shape, dtype):
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], shape, dtype)
    kernel = jax.random.normal(keys[1], (5, 4), dtype)
    cotangent = jax.random.normal(keys[2], (*shape[:-1], 4), dtype)
    got, pull = jax.vjp(dense_dot_general, x, kernel)
    expected, pull_expected = jax.vjp(plain, x, kernel)
    tolerance = 1e-6 if dtype == "float32" else 2e-2
    pairs = zip(
        (got, *pull(cotangent)), (expected, *pull_expected(cotangent)), strict=True
    )
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype
        ours, theirs = (np.asarray(a, np.float64) for a in (ours, theirs))
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=tolerance * abs(theirs).max()
        )
