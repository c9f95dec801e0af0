"""The GELU: the exact one, to the rounding of its form."""

import jax
import numpy as np
import pytest

from nystromformer.gelu import gelu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_is_the_exact_one(dtype):
    x = jax.numpy.linspace(-8, 8, 1001).astype(dtype)
    step = float(jax.numpy.finfo(dtype).eps)
    for function in (lambda f: f(x), lambda f: jax.grad(lambda y: f(y).sum())(x)):
        got = np.asarray(function(gelu), np.float64)
        erfc = np.asarray(
            function(lambda y: jax.nn.gelu(y.astype("float32"), approximate=False)),
            np.float64,
        )
        # 1 + erf is rounded to a float32 near 1, and then multiplied by |x| ≤ 8.
        np.testing.assert_allclose(got, erfc, rtol=step, atol=8 * 2**-23)
