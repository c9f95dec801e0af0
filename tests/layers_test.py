"""Layers: nnx's, with their gradients, and no digits lost in half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import Mlp
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import Dense, LayerNorm, dense, layer_norm, make_norm
from nystromformer.token_models import MaskedLanguageModel
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

D = 8
EPSILON = float(jnp.finfo(jnp.bfloat16).eps)
# All of these are numbers of bfloat16.
X = np.linspace(-4, 4, 8 * D + 1)[:-1].reshape(8, D)


@pytest.mark.parametrize(
    "argument", [{"use_scale": False}, {"use_bias": False}, {"feature_axes": (-2, -1)}]
)
def test_layer_norm_refuses_what_it_does_not_honour(argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        LayerNorm(8, **argument, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("argument", [{"use_bias": False}, {"precision": "highest"}])
def test_dense_refuses_what_it_does_not_honour(argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        Dense(8, 4, **argument, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("dtype", [None, jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
def test_layers_give_the_dtypes_of_nnx(dtype, x_dtype):
    x = jnp.ones((2, 3, 8), x_dtype)
    norm = LayerNorm(8, dtype=dtype, rngs=nnx.Rngs(0))
    nnx_norm = nnx.LayerNorm(8, dtype=dtype, rngs=nnx.Rngs(0))
    assert norm(x).dtype == nnx_norm(x).dtype

    layer = Dense(8, 4, dtype=dtype, rngs=nnx.Rngs(0))
    nnx_layer = nnx.Linear(8, 4, dtype=dtype, rngs=nnx.Rngs(0))
    assert layer(x).dtype == nnx_layer(x).dtype


def random_array(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), "float32")


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


def make_config(kind, dtype):
    return EncoderConfig(
        vocab_size=11, max_length=8, model_dim=D, mlp_dim=D, gelu=kind, dtype=dtype
    )


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_mlp_in_bfloat16_keeps_the_tail_of_its_gelu(kind):
    mlp = Mlp(make_config(kind, jnp.bfloat16), rngs=nnx.Rngs(0))
    for layer in (mlp.expand, mlp.contract):
        layer.kernel[...] = jnp.eye(D)
    out = nnx.jit(mlp)(jnp.asarray(X, jnp.bfloat16))
    np.testing.assert_allclose(np.float64(out), paper.gelu(X, kind), rtol=EPSILON)


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_decoder_in_bfloat16_keeps_the_tail_of_its_gelu(kind):
    """Behind it a LayerNorm makes small numbers as large as others."""

    def logits(dtype):
        model = MaskedLanguageModel(make_config(kind, dtype), rngs=nnx.Rngs(0))
        model.transform.kernel[...] = jnp.eye(D)
        return np.float64(nnx.jit(lambda model, x: model.decode(x))(model, tail))

    tail = jnp.asarray(X[:1], jnp.bfloat16)  # from −4 to −3.1
    expected = logits(jnp.float32)
    error = np.abs(logits(jnp.bfloat16) - expected).max()
    assert error < 4 * EPSILON * np.abs(expected).max()
