"""Dropout draws as it should; products are those of jax, with fewer digits lost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.dot_product import attend
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import make_norm
from nystromformer.nystrom import segment_means
from nystromformer.ops import dense, dropout, layer_norm, random_uint16
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)
compiled_dropout = jax.jit(dropout, static_argnums=1)


def random_array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    count = 10**5
    out = np.asarray(compiled_dropout(jnp.ones(count), rate, KEY))
    is_kept = out != 0
    standard_error = np.sqrt(rate * (1 - rate) / count)
    kept_share = 1 - rate
    assert abs(is_kept.mean() - kept_share) < 5 * standard_error
    np.testing.assert_allclose(out[is_kept], 1 / kept_share, rtol=2**-15)


def test_dropout_keeps_the_dtype():
    out = compiled_dropout(jnp.ones(3, jnp.bfloat16), 0.1, KEY)
    assert out.dtype == jnp.bfloat16


def test_dropout_of_rate_zero_or_without_a_key_is_the_identity():
    x = jnp.arange(5.0)
    assert dropout(x, 0.0, KEY) is x
    assert dropout(x, 0.3, None) is x


def test_dropout_of_nearly_all_leaves_finite_numbers():
    rate = 1 - 2.0**-18
    out = np.asarray(compiled_dropout(jnp.ones(2**20), rate, KEY))
    assert 0 < (out > 0).mean() < 2**-14
    assert out.max() == 2**16


NUM_WORDS = 2**16


@pytest.fixture(scope="module")
def random_bytes():
    """The four bytes of each random word, uint8 [4, NUM_WORDS, 4], of four keys."""
    draw = jax.jit(random_uint16, static_argnums=1)
    keys = jax.random.split(KEY, 4)
    shape = (64, NUM_WORDS // 32)
    halves = np.stack([draw(key, shape) for key in keys])
    bytes_of_keys = halves.reshape(4, -1).view(np.uint8)
    return bytes_of_keys.reshape(4, NUM_WORDS, 4)


@pytest.fixture(scope="module")
def random_signs(random_bytes):
    """The bits of each random word as −1 and 1, float32 [4, NUM_WORDS, 32]."""
    bits = np.unpackbits(random_bytes, axis=2)
    return 2 * bits.astype(np.float32) - 1


def test_bits_of_random_uint16_are_balanced(random_signs):
    assert abs(random_signs.mean(1)).max() < 5 / np.sqrt(NUM_WORDS)


@pytest.mark.parametrize("place", range(4))
def test_bytes_of_random_uint16_are_uniform(random_bytes, place):
    """χ² has 255 degrees of freedom."""
    values = random_bytes[:, :, place].ravel()
    expected = values.size / 256
    differences = np.bincount(values, minlength=256) - expected
    chi_squared = np.sum(differences**2) / expected
    assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("lag", [1, 2, 3, 32, 64, 128, 2048])
def test_neighbours_of_random_uint16_are_not_correlated(random_signs, lag):
    signs = random_signs[0]
    correlation = signs[lag:].T @ signs[:-lag] / NUM_WORDS
    assert abs(correlation).max() < 5 / np.sqrt(NUM_WORDS)


def test_random_uint16_of_keys_split_from_one_are_not_correlated(random_signs):
    signs = random_signs.reshape(4, -1)
    correlation = signs @ signs.T / signs.shape[1]
    assert abs(correlation - np.eye(4)).max() < 5 / np.sqrt(signs.shape[1])


def test_random_uint16_are_the_same_on_every_device(monkeypatch):
    def run_all(**branches):
        return [np.asarray(function()) for function in branches.values()]

    monkeypatch.setattr(jax.lax, "platform_dependent", run_all)
    np.testing.assert_array_equal(*random_uint16(KEY, (3, 5, 7)))


@pytest.mark.parametrize(("platform", "products"), [("cuda", 2), ("tpu", 0)])
def test_what_depends_on_the_platform_lowers_with_its_gradient(platform, products):
    """The function is under vmap; no such device is needed."""

    def total(x, key):
        landmarks = dropout(segment_means(x, 2)[0], 0.5, key)
        return attend(landmarks, x, x, are_keys_shared=True).sum()

    x = jnp.ones((3, 7, 5))
    keys = jax.random.split(KEY, 3)
    gradient = jax.jit(jax.vmap(jax.value_and_grad(total)))
    lowered = gradient.trace(x, keys).lower(lowering_platforms=(platform,))
    # Forward and gradient, each with the six products of bfloat16 parts.
    assert lowered.as_text().count("num_primitive_operations = 6") == products


def output_and_gradients(function, x, kernel, bias, cotangent):
    """The output, and the gradients of x, kernel or scale, and bias, compiled."""

    @jax.jit
    def compute(*inputs):
        out, backward = jax.vjp(function, *inputs)
        gradients = backward(cotangent.astype(out.dtype))
        return [out, *gradients]

    return compute(x, kernel, bias)


@pytest.mark.parametrize(
    ("shape", "width"), [((7, 5), 4), ((2, 3, 7, 5), 4), ((2, 7, 257), 257)]
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dense_and_its_gradients_are_those_of_a_product_and_a_sum(shape, width, dtype):
    x = random_array(0, *shape)
    kernel = random_array(1, shape[-1], width)
    bias = random_array(2, width)
    cotangent = random_array(3, *shape[:-1], width)

    def plain(x, kernel, bias):
        return x @ kernel + jnp.broadcast_to(bias, cotangent.shape)

    expected = output_and_gradients(plain, x, kernel, bias, cotangent)
    actual = output_and_gradients(dense, x.astype(dtype), kernel, bias, cotangent)

    assert [array.dtype for array in actual] == [dtype, dtype, "float32", "float32"]
    tolerance = TOLERANCE["same" if dtype == "float32" else "bfloat16"]
    for array, expected_array in zip(actual, expected, strict=True):
        assert relative_error(array, expected_array) <= tolerance


def test_gradients_of_bfloat16_are_summed_in_float32():
    """bfloat16 ends at 256 when it adds ones."""
    count = 2**12 + 1
    ones = jnp.ones((count, 1), jnp.bfloat16)
    _, gradients = jax.vjp(dense, ones, jnp.ones((1, 1)), jnp.ones(1))
    _, kernel_gradient, bias_gradient = gradients(ones)
    assert float(kernel_gradient[0, 0]) == count
    assert float(bias_gradient[0]) == count


@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.parametrize("shape", [(64,), (3, 64), (2, 5, 3, 64)])
def test_layer_norm_and_its_gradients_are_those_of_float64(shape, mean):
    """The numbers have 5 binary places, so that their mean is exact in float32."""
    x = mean + np.round(32 * random_array(0, *shape)) / 32
    scale = 1 + random_array(1, 64)
    bias = random_array(2, 64)
    cotangent = random_array(3, *shape)

    def plain(x, scale, bias):
        centred = x - x.mean(-1, keepdims=True)
        deviation = jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
        normal = centred / deviation
        scale = jnp.broadcast_to(scale, x.shape)
        return normal * scale + jnp.broadcast_to(bias, x.shape)

    def norm(x, scale, bias):
        return layer_norm(x, scale, bias, 1e-5)

    with jax.enable_x64(True):
        inputs = [np.asarray(array, float) for array in (x, scale, bias)]
        expected = output_and_gradients(plain, *inputs, jnp.asarray(cotangent))
    actual = output_and_gradients(norm, x, scale, bias, cotangent)
    for array, expected_array in zip(actual, expected, strict=True):
        assert array.dtype == jnp.float32
        assert relative_error(array, expected_array) <= TOLERANCE["same"]


def test_norms_of_a_model_are_exact_where_the_mean_is_large():
    config = EncoderConfig(vocab_size=1, max_length=8)
    x = np.round(32 * random_array(0, 1, 8, 64)) / 32
    norm = make_norm(config, nnx.Rngs(0))
    assert relative_error(norm(1000 + x), norm(x)) <= TOLERANCE["same"]
