"""Dropout draws as it should; products are those of jax, with fewer digits lost."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.ops import (
    NARROW,
    dense,
    dropout,
    exp_in,
    precise_einsum,
    random_halves,
)
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    count = 10**5
    out = np.asarray(dropout(jnp.ones(count), rate, KEY))
    kept = out != 0
    deviation = np.sqrt(rate * (1 - rate) / count)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    np.testing.assert_allclose(out[kept], 1 / (1 - rate), rtol=2**-15)
    assert dropout(jnp.ones(3, jnp.bfloat16), rate, KEY).dtype == jnp.bfloat16


def test_dropout_of_rate_zero_or_without_a_key_is_the_identity():
    x = jnp.arange(5.0)
    assert dropout(x, 0.0, KEY) is x
    assert dropout(x, 0.3, None) is x


def test_dropout_draws_for_each_number():
    own = np.asarray(dropout(jnp.ones((3, 2, 31, 37)), 0.5, KEY)).reshape(6, -1)
    assert abs(np.corrcoef(own) - np.eye(6)).max() < 5 / np.sqrt(31 * 37)


@pytest.fixture(params=["cpu", "default"])
def branch(request, monkeypatch):
    """What is for a CPU, and what is for all else."""

    def choose(*args, **branches):
        return branches.get(request.param, branches["default"])(*args)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    return request.param


def test_random_halves_are_uniform_and_without_correlation(branch):
    """Each bit, each half of a word, neighbours in position, keys split from one."""
    count = 2**16
    keys = jax.random.split(KEY, 4)
    halves = np.stack([random_halves(key, (64, count // 32)) for key in keys])
    words = halves.reshape(4, -1).view(np.uint32)
    bits = np.unpackbits(words.view(np.uint8), axis=1).reshape(4, count, 32)
    assert abs(bits.mean(1) - 0.5).max() < 5 * 0.5 / np.sqrt(count)
    for half in words.view(np.uint16).reshape(8, -1):
        expected = half.size / 256
        for byte in (half & 255, half >> 8):
            chi2 = ((np.bincount(byte, minlength=256) - expected) ** 2 / expected).sum()
            assert abs(chi2 - 255) < 5 * np.sqrt(2 * 255)
    signs = 2 * bits[0].astype(np.float32) - 1
    for lag in (1, 2, 3, 32, 64, 128, 2048):
        assert abs(signs[lag:].T @ signs[:-lag] / count).max() < 5 / np.sqrt(count)
    of_keys = (2 * bits.astype(np.float32) - 1).reshape(4, -1)
    correlation = of_keys @ of_keys.T / of_keys.shape[1] - np.eye(4)
    assert abs(correlation).max() < 5 / np.sqrt(of_keys.shape[1])


def test_every_device_draws_the_same():
    def branches(**branches):
        return [np.asarray(function()) for function in branches.values()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.lax, "platform_dependent", branches)
        one, other = random_halves(KEY, (3, 5, 7))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("platform", "products"), [("cuda", 3), ("tpu", 0)])
def test_what_depends_on_the_platform_lowers_with_its_gradient(platform, products):
    """Under vmap, and no such device is needed."""

    def total(x, y, key):
        return dropout(precise_einsum("ms,sh->mh", x, y), 0.5, key).sum()

    x, y, keys = jnp.ones((3, 2, 7)), jnp.ones((3, 7, 5)), jax.random.split(KEY, 3)
    gradient = jax.jit(jax.vmap(jax.value_and_grad(total, (0, 1))))
    lowered = gradient.trace(x, y, keys).lower(lowering_platforms=(platform,))
    # Forward and both gradients, each with the six products of bfloat16 parts.
    assert lowered.as_text().count("num_primitive_operations = 6") == products


@pytest.mark.parametrize(
    ("shape", "width"), [((7, 5), 4), ((2, 3, 7, 5), 4), ((2, 7, 257), 257)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dense_and_its_gradients_are_those_of_a_product_and_a_sum(shape, width, dtype):
    sizes = (shape, (shape[-1], width), (width,), (*shape[:-1], width))
    x, kernel, bias, cotangent = (
        jnp.asarray(np.random.default_rng(i).normal(size=size), "float32")
        for i, size in enumerate(sizes)
    )

    def plain(x, kernel, bias):
        return jnp.einsum("...d,de->...e", x, kernel) + jnp.broadcast_to(
            bias, cotangent.shape
        )

    expected, pull = jax.vjp(plain, x, kernel, bias)
    out, our_pull = jax.vjp(dense, x.astype(dtype), kernel, bias)
    gradients = our_pull(cotangent.astype(dtype))
    assert [g.dtype for g in (out, *gradients)] == [dtype, dtype, "float32", "float32"]
    tolerance = TOLERANCE["same" if dtype == "float32" else "bfloat16"]
    for one, other in zip((out, *gradients), (expected, *pull(cotangent)), strict=True):
        assert relative_error(one, other) <= tolerance


def test_the_gradient_of_dense_has_a_derivative_along_a_direction():
    x, kernel, bias = (
        jnp.asarray(np.random.default_rng(i).normal(size=size))
        for i, size in enumerate([(2, 7, 5), (5, 4), (4,)])
    )

    def gradient(product, kernel):
        return jax.grad(lambda kernel: jnp.sin(product(x, kernel, bias)).sum())(kernel)

    ours, expected = (
        jax.jvp(partial(gradient, product), (kernel,), (kernel**2,))[1]
        for product in (dense, lambda x, kernel, bias: x @ kernel + bias[None, None])
    )
    assert relative_error(ours, expected) <= TOLERANCE["same"]


def test_the_gradient_of_a_wide_kernel_is_not_held_for_each_sequence():
    def gradient(x, kernel, bias):
        return jax.grad(lambda *args: (dense(*args) ** 2).sum(), (0, 1, 2))(
            x, kernel, bias
        )

    width, batch = 512, 64
    assert width**2 > NARROW
    arrays = (jnp.ones((batch, 2, width)), jnp.ones((width, width)), jnp.ones(width))
    held = jax.jit(gradient).lower(*arrays).compile().memory_analysis()
    assert held
    assert held.temp_size_in_bytes < batch * arrays[1].nbytes / 8


def test_gradients_of_bfloat16_are_summed_in_float32():
    count = 2**12 + 1  # bfloat16 ends at 256 when it adds ones
    ones = jnp.ones((count, 1), jnp.bfloat16)
    _, pull = jax.vjp(dense, ones, jnp.ones((1, 1)), jnp.ones(1))
    _, of_kernel, of_bias = pull(ones)
    assert float(of_kernel[0, 0]) == float(of_bias[0]) == count


def test_a_rounded_exponential_has_the_gradient_of_the_rounded_number():
    x = jnp.linspace(-3.0, 0.0, 7)
    out, pull = jax.vjp(lambda x: exp_in(x, jnp.bfloat16), x)
    np.testing.assert_array_equal(out, jnp.exp(x).astype(jnp.bfloat16))
    (gradient,) = pull(jnp.ones_like(out))
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient, out.astype(jnp.float32))
