"""The depthwise convolution against its definition, one sum a token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.convolution import depthwise_conv
from tests import paper
from tests.tolerance import TOLERANCE, relative_error


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("length", "size"), [(1, 3), (13, 1), (67, 35), (131, 7)])
def test_it_is_the_sum_over_the_neighbours_that_count(length, size, dtype, scale):
    rng = np.random.default_rng(length)
    value, kernel = rng.normal(size=(length, 3)), rng.normal(size=size)
    value, kernel, token = scale * value, scale * kernel, np.arange(length)
    for mask in (token >= 0, token < -(-2 * length // 3), token % 3 != 1):
        with jax.enable_x64(dtype == "float64"):
            inputs = jnp.asarray(value, dtype), jnp.asarray(kernel, dtype)
            actual = np.asarray(jax.jit(depthwise_conv)(*inputs, jnp.asarray(mask)))
        assert actual.dtype == dtype
        expected = paper.convolution(value, kernel, mask)
        assert relative_error(actual, expected) <= TOLERANCE[dtype]
