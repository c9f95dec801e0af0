"""A run that meets a NaN: it stops, or passes over it where only a metric is NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.errors import NotFiniteError
from nystromformer.training.loop import train
from nystromformer.training.objective import Classification, label_sums
from tests.training.conftest import BagOfTokens
from tests.training.metrics_file import rows_of

ADVICE = (
    r"; if the model has every token and class of the data, a lower "
    r"config\.optimizer\.learning_rate may help, in a new workdir$"
)


class NanInTraining(BagOfTokens):
    """Gives NaN at the 14th step of training."""

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        is_bad = (self.calls[...] == 14) & (dropout_rng is not None)
        return logits * jnp.where(is_bad, jnp.nan, 1)


class NanInEvaluation(BagOfTokens):
    """Gives NaN wherever it is evaluated after the 14th step of training."""

    def __call__(self, inputs, mask, dropout_rng=None):
        logits = super().__call__(inputs, mask, dropout_rng)
        is_bad = (self.calls[...] > 14) & (dropout_rng is None)
        return logits * jnp.where(is_bad, jnp.nan, 1)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            NanInTraining,
            r"step 14: not finite: the loss, the gradient of embedding\.embedding, "
            r"the gradient of out\.bias and 1 more",
        ),
        (NanInEvaluation, "step 16: the validation loss is not finite"),
    ],
)
def test_train_stops_at_a_nan_and_leaves_a_whole_checkpoint(
    run_in, tmp_path, model, message
):
    with pytest.raises(NotFiniteError, match=message + ADVICE):
        train(run_in(tmp_path, model))
    resumed = run_in(tmp_path)
    assert resumed.step == 12
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(resumed.state))


class SelectedByLogit(Classification):
    """Selects by the mean of a logit, which is NaN up to a step where no loss is."""

    select = "logit"
    metrics = ("loss", "accuracy", "logit")

    def __init__(self, last_nan_step):
        self.last_nan_step = last_nan_step

    def __call__(self, model, batch, key):
        logits = model(batch.inputs, batch.mask, dropout_rng=key)
        sums = label_sums(logits, batch.labels, batch.weights)
        is_nan = model.calls[...] <= self.last_nan_step
        values = jnp.where(is_nan, jnp.nan, logits[:, 0])
        sums["logit"] = (values * batch.weights).sum(), batch.weights.sum()
        return sums


def test_train_passes_over_a_nan_of_the_selected_metric(run_in, tmp_path):
    """It is NaN at the first two validations. The best of the others is kept."""
    outcome = train(run_in(tmp_path, objective=SelectedByLogit(last_nan_step=16)))
    values = {row["step"]: row["logit"] for row in rows_of(tmp_path, "validation")}
    assert np.isnan([values[8], values[16]]).all()
    best = max((24, 32, 40), key=lambda step: values[step])
    assert outcome["best_step"] == best
    assert outcome["validation_logit"] == values[best]


def test_train_stops_where_the_selected_metric_was_never_a_number(run_in, tmp_path):
    run = run_in(tmp_path, objective=SelectedByLogit(last_nan_step=40))
    message = "validation logit was never finite, though the loss was: see whether"
    with pytest.raises(NotFiniteError, match=message):
        train(run)
