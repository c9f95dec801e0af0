"""Attentions in the layers of flax: in nnx with their parameters, in linen without."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention.nystrom import nystrom_attention
from tests.attention.cases import MASK, make, normal
from tests.tolerance import TOLERANCE, relative_error

X = normal(1, *MASK.shape, 10).astype(np.float32)


def nnx_layer(attention, decode=False):
    """A layer of flax for x [B, L, 10], with two heads."""
    return nnx.MultiHeadAttention(
        num_heads=2,
        in_features=10,
        attention_fn=attention,
        decode=decode,
        rngs=nnx.Rngs(0),
    )


@pytest.mark.parametrize("length", [13, 12])
def test_softmax_attention_is_the_one_of_flax_in_cross_attention(length):
    """There are as many queries as keys, and one less."""
    queries = X[:, :length]
    keys = X[:, 20:33]
    num_valid = np.array([13, 5, 1])
    mask = np.arange(13) < num_valid[:, None, None, None]
    layer = nnx.jit(nnx_layer(make("softmax")))
    flax_layer = nnx.jit(nnx_layer(nnx.dot_product_attention))
    out = layer(queries, keys, mask=mask)
    expected = flax_layer(queries, keys, mask=mask)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


def decode_with_flax(attention):
    """The outputs of three steps of flax's own decoding."""
    layer = nnx_layer(attention, decode=True)
    layer.init_cache((3, 4, 10))
    decode = nnx.jit(lambda layer, x: layer(x))
    tokens = [X[:, :1], X[:, 1:2], X[:, 2:3]]
    return np.stack([decode(layer, token) for token in tokens])


def test_flax_decodes_with_softmax_attention_where_its_mask_is_cast():
    softmax = make("softmax")

    def attend(query, key, value, mask, **options):
        return softmax(query, key, value, mask=mask.astype(bool), **options)

    expected = decode_with_flax(nnx.dot_product_attention)
    assert relative_error(decode_with_flax(attend), expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", ["softmax", "nystrom"])
def test_attention_rejects_the_mask_of_floats_of_a_flax_decoder(name):
    with pytest.raises(ValueError, match=r"got float32; .*decode=True.*floats"):
        decode_with_flax(make(name))


DROP_INS = {
    "nystrom": make("nystrom", num_landmarks=7),
    "nystrom_attention": nystrom_attention,
    "softmax": make("softmax"),
}


def check_drop_in(attend):
    """attend(x [B, L, D], mask) with garbage in padding, with and without the mask."""
    garbage = np.where(MASK[:, :, None], X, 3e3).astype(np.float32)
    mask = MASK[:, None, None]
    clean_out = attend(X, mask)
    assert clean_out.shape == X.shape
    garbage_out = attend(garbage, mask)
    error = relative_error(garbage_out[MASK], clean_out[MASK])
    assert error <= TOLERANCE["same"]
    unmasked_out = attend(garbage, None)
    assert relative_error(unmasked_out[MASK], clean_out[MASK]) > 0.01


@pytest.mark.parametrize(
    "attention",
    [
        DROP_INS["nystrom"],
        DROP_INS["nystrom_attention"],
        DROP_INS["softmax"],
        make("nystrom"),
    ],
    ids=["nystrom", "nystrom_attention", "softmax", "nystrom with a convolution"],
)
def test_attention_drops_into_flax_nnx(attention):
    layer = nnx_layer(attention)
    has_kernel = getattr(attention, "conv_kernel_size", 0) > 0
    is_trained = "attention_fn" in nnx.state(layer, nnx.Param)
    assert is_trained == has_kernel
    graphdef, state = nnx.split(layer)
    check_drop_in(jax.jit(lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask)))


@pytest.mark.parametrize("name", DROP_INS)
def test_attention_drops_into_flax_linen(name):
    layer = linen.MultiHeadDotProductAttention(2, attention_fn=DROP_INS[name])
    params = jax.jit(layer.init)(jax.random.key(0), X)
    check_drop_in(jax.jit(lambda x, mask: layer.apply(params, x, mask=mask)))


class Linen(linen.Module):
    """A linen layer with the kernel of a convolution of V."""

    @linen.compact
    def __call__(self, x):
        kernel = self.param("conv_kernel", linen.initializers.normal(), (5, 2))
        attend = partial(nystrom_attention, num_landmarks=7, conv_kernel=kernel)
        return linen.MultiHeadDotProductAttention(2, attention_fn=attend)(x)


def test_nystrom_attention_trains_its_convolution_in_linen():
    layer = Linen()
    params = jax.jit(layer.init)(jax.random.key(0), X)["params"]

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.square(layer.apply({"params": params}, X)).sum()

    assert jnp.abs(gradient(params)["conv_kernel"]).min() > 0


def test_attention_with_parameters_is_refused_by_linen():
    attention = make("nystrom")
    layer = linen.MultiHeadDotProductAttention(2, attention_fn=attention)
    with pytest.raises(ValueError, match=r"10 parameters.*MultiHeadDotP.*nnx"):
        jax.eval_shape(layer.init, jax.random.key(0), X)

    x = jnp.ones((1, 11, 2, 5))
    out_outside_of_linen = jax.eval_shape(attention, x, x, x)
    assert out_outside_of_linen.shape == x.shape
