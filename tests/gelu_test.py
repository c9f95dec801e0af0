"""GELU in bfloat16, where jax's own is inexact far below zero."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import Mlp
from nystromformer.encoder_config import EncoderConfig
from nystromformer.token_models import MaskedLanguageModel
from tests import paper

D = 8
EPSILON = float(jnp.finfo(jnp.bfloat16).eps)
# All of these are numbers of bfloat16.
X = np.linspace(-4, 4, 8 * D + 1)[:-1].reshape(8, D)


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
