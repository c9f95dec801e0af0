"""The loss on hidden tokens against its definition, one token at a time."""

import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.study.masked_loss import masked_losses
from nystromformer.heads import MaskedLanguageModel
from tests.tolerance import TOLERANCE, relative_error

V, L, MASK = 23, 19, 22
LENGTHS = np.array([19, 11, 7])


def make():
    options = {"num_landmarks": L, "conv_kernel_size": 3}
    config = EncoderConfig(
        vocab_size=V, max_length=L, norm="post", attention_options=options
    )
    model = MaskedLanguageModel(config, rngs=nnx.Rngs(0))
    for block in model.encoder.blocks:  # weights that are not near uniform
        block.attention.project.kernel[...] *= 6
    return model


def test_it_is_the_mean_over_hidden_tokens():
    model, inputs = make(), np.random.default_rng(0).integers(0, V - 1, (3, L))
    arguments = {"mask_token": MASK, "special_tokens": (0, 1), "mlm_probability": 0.5}
    rows = masked_losses(model, inputs, LENGTHS, landmarks=[L, 3], **arguments)
    exact, few = rows
    assert (exact["num_landmarks"], few["num_landmarks"]) == (L, 3)
    assert abs(few["loss"] - exact["loss"]) > 1e-3
    assert model.encoder.blocks[0].attention.attention.num_landmarks == L

    valid = np.arange(L) < LENGTHS[:, None]
    draws = np.random.default_rng(0).random(inputs.shape)
    hidden = (draws < 0.5) & valid & (inputs > 1)
    logits = nnx.jit(model)(np.where(hidden, MASK, inputs), valid)
    logits = np.asarray(logits, np.float64)
    losses, correct = [], []
    for b, t in zip(*np.nonzero(hidden), strict=True):
        row = logits[b, t]
        losses.append(np.log(np.exp(row).sum()) - row[inputs[b, t]])
        correct.append(row.argmax() == inputs[b, t])
    assert exact["tokens"] == len(losses) > 9
    assert relative_error(exact["loss"], np.mean(losses)) < TOLERANCE["float32"]
    assert relative_error(exact["accuracy"] + 1, np.mean(correct) + 1) < 1e-6
    garbage = np.where(valid, inputs, 5)
    again = masked_losses(model, garbage, LENGTHS, landmarks=[L], **arguments)
    assert again == [exact]
    with pytest.raises(ValueError, match=r"hides none of 37 tokens"):
        masked_losses(model, inputs, LENGTHS, landmarks=[L], mask_token=MASK, share=0)
