"""Extremes of training: steps too long by far, and a NaN that stops the run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nystromformer.attention import ATTENTIONS
from nystromformer.config import TrainConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import SequenceClassifier
from nystromformer.training.data import Data
from nystromformer.training.loop import NotFiniteError, Trainer
from nystromformer.training.objective import Classification
from nystromformer.training.step import (
    Programs,
    graphdef_of,
    make_init,
    make_train_chunk,
)
from tests.attention.cases import OPTIONS
from tests.training.conftest import (
    CLASSES,
    VOCAB,
    BagOfTokens,
    make_split,
    optimizer,
    splits,
)

__all__ = ["optimizer", "splits"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_train_chunk_with_long_steps_stays_finite_in_every_attention(name, dtype):
    """Steps too long by far, so that weights grow; rows of 1 to 31 tokens."""
    data = Data.put(make_split(0, 64, length=31))
    long_steps = optax.adam(0.5, eps=1e-6)

    config = EncoderConfig(
        vocab_size=VOCAB,
        max_length=31,
        model_dim=8,
        mlp_dim=8,
        attention=name,
        attention_options=OPTIONS.get(name, {}),
        dtype=dtype,
    )

    def make_model(rngs):
        return SequenceClassifier(config, num_classes=CLASSES, rngs=rngs)

    init = make_init(make_model, long_steps, Classification())
    chunk = make_train_chunk(graphdef_of(make_model), long_steps, Classification())
    indices = jnp.arange(200 * 8).reshape(200, 8) % 64
    state, finite = chunk(init(np.uint32(0)), data, indices, 200)
    assert finite.culprits() == []
    assert int(state.step) == 200
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(state.weights))
    assert largest > 3  # else these steps tried nothing


SCHEDULE = TrainConfig(
    seed=0, batch_size=8, num_steps=40, eval_every=8, log_every=5, checkpoint_every=12
)


class Poisoned(BagOfTokens):
    """Gives NaN at the 14th step of training, or wherever it is evaluated after it."""

    when: str

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        step = self.calls[...]  # of training, this one included
        bad = step == 14 if self.when == "training" else step > 14
        if (dropout_rng is None) == (self.when == "training"):
            return logits
        return logits * jnp.where(bad, jnp.nan, 1)


STOPPED = {
    "training": r"step 14: not finite: the loss, the gradient of embedding\.embedding, "
    r".*; last checkpoint: 12",
    "validation": "step 16: the validation loss is not finite",
}


@pytest.mark.parametrize("when", STOPPED)
def test_trainer_stops_at_a_nan_and_leaves_a_whole_checkpoint(
    optimizer, splits, tmp_path, when
):
    poisoned = type("P", (Poisoned,), {"when": when})

    def trainer(make_model):
        programs = Programs.make(make_model, Classification(), optimizer, SCHEDULE)
        return Trainer(programs, SCHEDULE, splits, tmp_path)

    with pytest.raises(NotFiniteError, match=STOPPED[when]):
        trainer(poisoned).fit()
    again = trainer(BagOfTokens)
    again.writer.close()
    assert again.step == 12
    leaves = jax.tree.leaves((again.state.weights, again.state.optimizer))
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in leaves)
