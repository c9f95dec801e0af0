"""A denoising model does not see the tokens that it is to predict."""

import jax
import numpy as np
import pytest
from flax import nnx

from nystromformer.training.masked import ClassificationDenoising
from tests.training.denoising_cases import (
    INPUTS,
    KEY,
    B,
    L,
    V,
    make_batch,
    make_model,
    make_objective,
)


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


def check_no_leak(objective, model):
    """Predictions of masked tokens, and of the class, do not depend on these tokens."""
    masked, _ = jax.jit(objective.mask_batch)(make_batch(), KEY)
    is_masked = np.zeros((B, L), bool)
    rows = np.arange(B)[:, None]
    is_masked[rows, masked.positions] = np.asarray(masked.weights).astype(bool)
    # The next tokens are ordinary ones too: the last has the first for its next.
    next_tokens = np.where(INPUTS == V - 1, 3, INPUTS + 1)
    other_inputs = np.where(is_masked, next_tokens, INPUTS)
    assert (other_inputs != INPUTS).any(1).all()

    @jax.jit
    def predict(inputs):
        batch = make_batch()._replace(inputs=inputs)
        masked, padding_mask = objective.mask_batch(batch, KEY)
        vectors, mask = model.encoder(masked.inputs, padding_mask)
        return model.decode(vectors), model.read(vectors, mask, None)

    predictions = predict(INPUTS)
    other_predictions = predict(other_inputs)
    # Both are of one program, which hides the tokens before it computes.
    jax.tree.map(np.testing.assert_array_equal, predictions, other_predictions)


@pytest.mark.parametrize("corruption", ["mask_or_random", "mask_only"])
def test_masked_tokens_do_not_leak_into_the_input(model, corruption):
    check_no_leak(make_objective(corruption=corruption), model)


class MasksNothing(ClassificationDenoising):
    """Gives the model the input as it is."""

    def mask_batch(self, batch, key):
        masked, padding_mask = super().mask_batch(batch, key)
        return masked._replace(inputs=batch.inputs), padding_mask


class MasksAsBert(ClassificationDenoising):
    """Leaves one in ten of the masked tokens as it is."""

    corruptions = ("bert",)


@pytest.mark.parametrize(
    ("cls", "corruption"), [(MasksNothing, "mask_only"), (MasksAsBert, "bert")]
)
def test_a_leak_of_masked_tokens_is_seen(model, cls, corruption):
    objective = make_objective(cls, corruption=corruption)
    with pytest.raises(AssertionError):
        check_no_leak(objective, model)
