"""The gradient of token types."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.encoder_cases import INPUTS, B, L, make_encoder
from tests.tolerance import TOLERANCE, relative_error


def test_encoder_adds_up_the_gradient_of_a_token_type():
    """The sum over its tokens, as positions have it at each place."""
    graphdef, state = nnx.split(make_encoder(num_token_types=2, attention="identity"))
    types = np.tile(np.arange(L) > 7, (B, 1)).astype(int)

    @jax.jit
    @jax.grad
    def gradient(state):
        out, _ = nnx.merge(graphdef, state)(INPUTS, None, None, types)
        return jnp.sin(out).sum()

    gradients = gradient(state)
    by_position = np.asarray(gradients["positions"][...])
    expected = np.stack([by_position[:8].sum(0), by_position[8:].sum(0)])
    actual = gradients["token_types"][...]
    assert relative_error(actual, expected) <= TOLERANCE["float32"]


def test_encoder_has_no_scatter_for_token_types_on_a_gpu():
    """On a GPU the product that serves embeddings computes it, and no scatter."""
    graphdef, state = nnx.split(make_encoder(num_token_types=2, attention="identity"))

    def total(state, inputs, types):
        out, _ = nnx.merge(graphdef, state)(inputs, None, None, types)
        return out.sum()

    ids = jax.ShapeDtypeStruct((B, L), jnp.int32)
    gradient = jax.jit(jax.grad(total)).trace(state, ids, ids)
    text = gradient.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count('"stablehlo.scatter"(') == 0
