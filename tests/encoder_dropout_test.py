"""What an encoder draws: by its key alone, and in training not without one."""

import jax
import numpy as np
import pytest

from tests.encoder_cases import INPUTS, MASK, encode, error_of_valid_rows, make_encoder
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)
DROPPED_WEIGHTS = {"attention": "softmax", "attention_options": {"dropout_rate": 0.5}}


def test_encoder_after_train_needs_a_key_for_its_dropout():
    model = make_encoder(dropout_rate=0.3, attention="identity")
    expected = encode(model, INPUTS, MASK)
    model.train()
    with pytest.raises(ValueError, match=r"pass dropout_rng=….*model\.eval\(\)"):
        encode(model, INPUTS, MASK)
    assert error_of_valid_rows(encode(model, INPUTS, MASK, KEY), expected) > 0.01
    model.eval()
    out = encode(model, INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["same"]


def test_encoder_after_train_needs_no_key_without_dropout():
    model = make_encoder(dropout_rate=0.0, attention="identity")
    expected = encode(model, INPUTS, MASK)
    model.train()
    out = encode(model, INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["same"]


def test_encoder_after_train_needs_a_key_for_dropout_of_weights_alone():
    model = make_encoder(dropout_rate=0.0, **DROPPED_WEIGHTS)
    model.train()
    with pytest.raises(ValueError, match=r"pass dropout_rng=…"):
        encode(model, INPUTS, MASK)


def test_encoder_after_train_needs_a_key_for_features_that_are_redrawn():
    options = {"num_features": 5, "redraw_features": True}
    model = make_encoder(
        dropout_rate=0.0, attention="performer", attention_options=options
    )
    expected = encode(model, INPUTS, MASK)
    model.train()
    with pytest.raises(ValueError, match=r"redrawn.*pass dropout_rng=…"):
        encode(model, INPUTS, MASK)
    assert error_of_valid_rows(encode(model, INPUTS, MASK, KEY), expected) > 0.01


def test_encoder_drops_nothing_without_a_key():
    model = make_encoder(dropout_rate=0.3, attention="identity")
    model_without_dropout = make_encoder(dropout_rate=0.0, attention="identity")
    out = encode(model, INPUTS, MASK)
    expected = encode(model_without_dropout, INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["same"]
    assert error_of_valid_rows(encode(model, INPUTS, MASK, KEY), out) > 0.01


def test_encoder_drops_other_attention_weights_in_each_row():
    model = make_encoder(dropout_rate=0.0, **DROPPED_WEIGHTS)
    inputs = np.tile(INPUTS[:1], (2, 1))
    out = encode(model, inputs, None, KEY)
    assert relative_error(out[0], out[1]) > 0.01
