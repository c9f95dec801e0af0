"""The product with a weight matrix: as JAX's own, gradients too."""

import jax
import numpy as np
import pytest

from nystromformer.dense import dense_dot_general


def numbers(x):
    return ((x.ndim - 1,), (0,)), ((), ())


def product(x, kernel):
    return dense_dot_general(x, kernel, numbers(x))


def plain(x, kernel):
    return jax.lax.dot_general(x, kernel, numbers(x))


def on_another_device(*args, cpu, default):
    return default(*args)


@pytest.mark.parametrize("device", ["cpu", "another"])
@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 5), (2, 3, 7, 5)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_product_and_gradients_are_those_of_dot_general(
    shape, dtype, device, monkeypatch
):
    if device != "cpu":
        monkeypatch.setattr(jax.lax, "platform_dependent", on_another_device)
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], shape, dtype)
    kernel = jax.random.normal(keys[1], (5, 4), dtype)
    cotangent = jax.random.normal(keys[2], (*shape[:-1], 4), dtype)
    got, pull = jax.vjp(product, x, kernel)
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


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "highest"},
        {"preferred_element_type": "float32"},
        {"dimension_numbers": (((0,), (0,)), ((), ()))},
    ],
    ids=lambda x: next(iter(x)),
)
def test_what_it_does_not_do_is_refused(options):
    x = jax.numpy.ones((5, 5), "bfloat16")
    with pytest.raises(ValueError, match=r"no options and dimension numbers"):
        dense_dot_general(x, x, **{"dimension_numbers": numbers(x)} | options)
