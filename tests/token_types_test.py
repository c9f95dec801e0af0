"""Token types: passed, by separators, and their gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.encoder_cases import (
    FEATURES,
    INPUTS,
    MASK,
    B,
    L,
    V,
    encode,
    error_of_valid_rows,
    make_encoder,
)
from tests.tolerance import TOLERANCE, relative_error


def test_encoder_adds_token_types_by_default_those_after_the_separator():
    inputs = np.where(INPUTS == 3, 4, INPUTS)
    inputs[:, [7, 12]] = 3
    types = np.tile(np.arange(L) > 7, (B, 1)).astype(int)
    options = {"num_token_types": 2, "attention": "identity"}
    model = make_encoder(**options)
    separating_model = make_encoder(**options, separator=3)

    out_of_types = encode(model, inputs, MASK, None, types)
    out_of_zeros = encode(model, inputs, MASK, None, np.zeros((B, L), int))
    out = encode(separating_model, inputs, MASK)
    assert error_of_valid_rows(out, out_of_types) <= TOLERANCE["same"]
    out = encode(model, inputs, MASK)
    assert error_of_valid_rows(out, out_of_zeros) <= TOLERANCE["same"]
    assert error_of_valid_rows(out_of_types, out_of_zeros) > 1e-3


def test_encoder_with_one_token_type_gives_it_to_all_tokens():
    """Also to those after the separator, as RoBERTa."""
    options = {"num_token_types": 1, "attention": "identity"}
    model = make_encoder(**options, separator=3)
    assert (INPUTS == 3).any(1).all()
    expected = encode(make_encoder(**options), INPUTS, MASK)
    out = encode(model, INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["same"]


@pytest.mark.parametrize("options", [{}, {"separator": -1}, {"ignore_id": 511}])
def test_encoder_gives_bytes_type_0_if_none_is_the_separator(options):
    """Also the bytes 255, which −1 and 511 would be among them."""
    ids = np.where(INPUTS == 3, 255, INPUTS)
    options = {"vocab_size": 256, "num_token_types": 2, **options}
    model = make_encoder(attention="identity", **options)
    out_of_bytes = encode(model, jnp.asarray(ids, jnp.uint8))
    assert relative_error(out_of_bytes, encode(model, ids)) <= TOLERANCE["same"]


@pytest.mark.parametrize(
    ("num_token_types", "shape", "message"),
    [
        (0, (B, L), "num_token_types=0: set it to the number of types"),
        (2, (B, 1), r"token_types must be \[B, L\], here \(3, 31\), got \(3, 1\)"),
    ],
)
def test_encoder_rejects_token_types_that_it_would_not_add(
    num_token_types, shape, message
):
    model = make_encoder(num_token_types=num_token_types, attention="identity")
    with pytest.raises(ValueError, match=message):
        model(INPUTS, MASK, None, np.ones(shape, int))


def test_encoder_gives_features_type_0_unless_types_are_passed():
    model = make_encoder(
        vocab_size=None, input_dim=V, num_token_types=2, attention="identity"
    )
    out_of_zeros = encode(model, FEATURES, MASK, None, np.zeros((B, L), int))
    out = encode(model, FEATURES, MASK)
    assert error_of_valid_rows(out, out_of_zeros) <= TOLERANCE["same"]
    out_of_ones = encode(model, FEATURES, MASK, None, np.ones((B, L), int))
    assert error_of_valid_rows(out_of_ones, out_of_zeros) > 1e-3


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
