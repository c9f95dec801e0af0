"""Rematerialisation: it changes memory, and neither outputs nor gradients."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.encoder_cases import (
    INPUTS,
    MASK,
    OPTIONS,
    compile_model,
    make_encoder,
)
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)


def test_encoder_remat_recomputes_and_changes_nothing():
    def loss(state, graphdef):
        x, _ = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK), KEY)
        return jnp.where(MASK[:, :, None], jnp.sin(x), 0).sum()

    gradients = {}
    num_products = {}
    for remat in ("none", "block"):
        model = make_encoder(attention="identity", dropout_rate=0.3, remat=remat)
        graphdef, state = nnx.split(model)
        gradient = functools.partial(jax.grad(loss), graphdef=graphdef)
        gradients[remat], _ = jax.flatten_util.ravel_pytree(jax.jit(gradient)(state))
        names = [equation.primitive.name for equation in equations(gradient, state)]
        num_products[remat] = names.count("dot_general")

    error = relative_error(gradients["block"], gradients["none"])
    assert error <= TOLERANCE["float32"]
    assert num_products["block"] > num_products["none"]


def scanned(function):
    """The function of INPUTS as the only step of a scan."""
    _, outputs = jax.lax.scan(lambda carry, x: (carry, function(x)), 0, INPUTS[None])
    return outputs[0]


# Each of them gives function(INPUTS).
TRANSFORMATIONS = {
    "jit": lambda function: function(INPUTS),
    "vmap": lambda function: jax.vmap(function)(INPUTS[None])[0],
    "scan": scanned,
    "lax.map": lambda function: jax.lax.map(function, INPUTS[None])[0],
}


def make_model(attention, options, remat):
    return make_encoder(
        attention=attention,
        attention_options=options,
        remat=remat,
        num_layers=2,
    )


@functools.cache
def output_of_identity_without_remat():
    model = make_model("identity", {}, remat="none")
    out, _ = compile_model(model)(INPUTS)
    return np.asarray(out)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_encoder_remat_can_be_transformed_from_outside(name):
    model = make_model("identity", {}, remat="block")

    @jax.jit
    def transformed():
        return TRANSFORMATIONS[name](lambda x: model(x)[0])

    expected = output_of_identity_without_remat()
    assert relative_error(transformed(), expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("nystrom", OPTIONS),
        ("linformer", {"projection_dim": 5, "sharing": "layerwise"}),
        ("performer", {"num_features": 3}),
        ("bigbird", {"block_size": 2, "num_random_blocks": 1}),
    ],
    ids=["nystrom", "layerwise", "performer", "bigbird"],
)
def test_encoder_remat_keeps_parameters_of_all_kinds(attention, options):
    """All blocks share that of layerwise; two are never trained, one of them a key."""
    model = make_model(attention, options, remat="block")
    out = jax.jit(lambda x: model(x)[0])(INPUTS)
    expected, _ = compile_model(make_model(attention, options, remat="none"))(INPUTS)
    assert relative_error(out, expected) <= TOLERANCE["float32"]
