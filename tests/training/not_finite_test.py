"""A NaN stops the run and names the culprit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.config import TrainConfig
from nystromformer.training.loop import NotFiniteError, Trainer
from nystromformer.training.objective import Classification
from nystromformer.training.step import Programs
from tests.training.conftest import BagOfTokens

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
        programs = Programs(make_model, Classification(), optimizer)
        return Trainer(programs, SCHEDULE, splits, tmp_path)

    with pytest.raises(NotFiniteError, match=STOPPED[when]):
        trainer(poisoned).fit()
    again = trainer(BagOfTokens)
    again.writer.close()
    assert again.step == 12
    leaves = jax.tree.leaves((again.state.weights, again.state.optimizer))
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in leaves)
