"""The short convolution: its formula, and its place in the encoder.

Each test of the encoder is seen to fail on a convolution that sees padding.
"""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import encoder
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.layers import short_conv
from tests.attention import cases
from tests.encoder_cases import call
from tests.tolerance import TOLERANCE, relative_error

# Batch, length, vocabulary and the size of the model.
B = 3
L = 24
V = 11
D = 8
INPUTS = np.random.default_rng(0).integers(0, V, (B, L))
# There is padding at the end, in front and between tokens.
MASK = np.arange(L) < np.array([[L], [17], [20]])
MASK[1:, [0, 7, 8]] = False
OTHER_PADDING = np.where(MASK, INPUTS, (INPUTS + 1) % V)
KEY = jax.random.key(1)
# Iterations are unrolled, and compiling takes most of the time: there are few.
OPTIONS = cases.OPTIONS | {"nystrom": {"num_landmarks": 7, "num_pinv_iters": 2}}


def make_encoder(
    attention="identity", *, num_layers=1, model_dim=D, short_conv=3, **options
):
    config = EncoderConfig(
        vocab_size=V,
        max_length=L,
        num_layers=num_layers,
        model_dim=model_dim,
        mlp_dim=9,
        attention=attention,
        attention_options=OPTIONS.get(attention, {}),
        short_conv=short_conv,
        **options,
    )
    return Encoder(config, rngs=nnx.Rngs(0))


def valid_vectors(model, inputs, mask):
    """The vectors of valid tokens, and zeros at padding."""
    out, _ = model(inputs, mask, KEY)
    return jnp.where(mask[:, :, None], out, 0)


def compile_output_and_gradient(model):
    """A function of inputs and mask: the vectors, and a gradient of the parameters."""
    graphdef, params, drawn = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def compute(params, inputs, mask):
        def loss(params):
            model = nnx.merge(graphdef, params, drawn)
            vectors = valid_vectors(model, inputs, mask)
            return jnp.sin(3 * vectors).sum(), vectors

        (_, vectors), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        return vectors, jax.flatten_util.ravel_pytree(gradient)[0]

    return functools.partial(compute, params)


def output_and_gradient(model):
    return compile_output_and_gradient(model)(INPUTS, MASK)


def compile_output(model):
    """A function of inputs and mask: the vectors."""
    return jax.jit(functools.partial(valid_vectors, model))


def convolve_by_formula(x, kernel):
    """The convolution in float64, token by token."""
    x = np.float64(x)
    kernel = np.float64(kernel)
    length = x.shape[1]
    size = len(kernel)
    out = np.zeros(x.shape)
    for t in range(length):
        for k in range(size):
            source = t + k - (size - 1) // 2
            if 0 <= source < length:
                out[:, t] += kernel[k] * x[:, source]
    return out


@pytest.mark.parametrize("length", [1, 2, L])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_short_conv_is_its_formula(size, length):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, length, D)).astype(np.float32)
    kernel = rng.normal(size=(size, D)).astype(np.float32)
    out = jax.jit(short_conv)(x, kernel)
    expected = convolve_by_formula(x, kernel)
    assert relative_error(out, expected) <= TOLERANCE["float32"]
    if min(size, length) > 1:
        backwards = convolve_by_formula(x, kernel[::-1])
        assert relative_error(out, backwards) > 0.1


def test_short_conv_sums_the_gradient_of_its_kernel_in_float32():
    """In bfloat16 a sum of ones ends at 256."""
    x = jnp.ones((1, 1000, D), jnp.bfloat16)

    def total(kernel):
        out = short_conv(x, kernel)
        assert out.dtype == jnp.bfloat16
        return out.sum(dtype=jnp.float32)

    gradient = jax.jit(jax.grad(total))(jnp.ones((3, D)))
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient[:, 0], [999, 1000, 999])


# Attentions of one, two and three projections. Every attention ignores padding, which
# contract_test holds.
ATTENTIONS = ("identity", "reformer", "nystrom")


@pytest.mark.parametrize(
    ("attention", "norm"),
    [*((name, "pre") for name in ATTENTIONS), ("softmax", "post")],
)
def test_encoder_with_short_conv_keeps_padding_out(attention, norm, monkeypatch):
    model = make_encoder(attention, norm=norm, positions="rotary", num_heads=1)
    compute = compile_output_and_gradient(model)
    expected, expected_gradient = compute(INPUTS, MASK)
    out, gradient = compute(OTHER_PADDING, MASK)
    # Both are of one program, which masks the ids before it computes.
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(gradient, expected_gradient)

    monkeypatch.setattr(encoder, "zero_masked", lambda x, mask: x)
    out = compile_output(model)(OTHER_PADDING, MASK)
    assert relative_error(out, expected) > 1e-3


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_encoder_with_short_conv_ignores_added_padding(attention):
    model = make_encoder(attention, positions="rotary", num_heads=1)
    graphdef, state = nnx.split(model)

    @jax.jit
    def run(*inputs):
        out, _ = nnx.merge(graphdef, state)(*inputs)
        return out

    expected = run(INPUTS[:, :13])
    padded = run(INPUTS, np.arange(L) < np.full((B, 1), 13))
    assert relative_error(padded[:, :13], expected) <= TOLERANCE["float32"]
    unmasked = run(INPUTS, np.ones((B, L), bool))
    assert relative_error(unmasked[:, :13], expected) > 1e-3


def test_identity_with_short_conv_is_the_convolution_alone():
    """The convolution adds to its input, in front of the layer's own projection."""
    layer = make_encoder(short_conv=5).blocks[0].attention
    x = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
    valid = np.where(MASK[:, :, None], x, 0)
    convolved = x + convolve_by_formula(valid, layer.short_conv[...])
    expected = layer.out(layer.project(jnp.float32(convolved)))
    out = call(layer, x, MASK)
    assert relative_error(out[MASK], expected[MASK]) <= TOLERANCE["float32"]


@pytest.mark.parametrize(("size", "reach"), [(0, 0), (3, 2), (5, 4)])
def test_identity_with_short_conv_sees_half_a_kernel_a_layer(size, reach):
    model = make_encoder(short_conv=size, num_layers=2)
    changed_inputs = INPUTS.copy()
    changed_inputs[:, 10] = (INPUTS[:, 10] + 1) % V

    before, _ = call(model, INPUTS)
    after, _ = call(model, changed_inputs)

    tokens = np.flatnonzero(np.any(after != before, axis=(0, 2)))
    np.testing.assert_array_equal(tokens, np.arange(10 - reach, 11 + reach))


# Of all other encoders encoder_remat_test says so.
@pytest.mark.slow
def test_short_conv_changes_nothing_by_remat():
    options = {"positions": "rotary", "dropout_rate": 0.3}
    model = make_encoder("nystrom", **options)
    rematerialized_model = make_encoder("nystrom", remat="block", **options)

    expected, expected_gradient = output_and_gradient(model)
    out, gradient = output_and_gradient(rematerialized_model)

    assert relative_error(out, expected) <= TOLERANCE["same"]
    assert relative_error(gradient, expected_gradient) <= TOLERANCE["same"]


# Of the encoder without the convolution encoder_test says so.
@pytest.mark.slow
def test_encoder_with_short_conv_in_bfloat16_is_near_float32():
    options = {"positions": "rotary", "dropout_rate": 0.0}
    model = make_encoder("nystrom", **options)
    bfloat16_model = make_encoder("nystrom", dtype=jnp.bfloat16, **options)

    expected = compile_output(model)(INPUTS, MASK)
    out = compile_output(bfloat16_model)(INPUTS, MASK)

    assert out.dtype == jnp.bfloat16
    assert relative_error(out, expected) <= TOLERANCE["bfloat16"]
