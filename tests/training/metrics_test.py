"""Metrics as weighted sums: exact over uneven batches, blind to filler rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training.objective import Totals, batch_totals


def test_means_over_uneven_batches_equal_those_over_all_examples():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(11, 5))
    labels = rng.integers(0, 5, 11)
    totals = Totals.zero()
    for start, stop in ((0, 3), (3, 4), (4, 11)):
        rows = slice(start, stop)
        weights = jnp.ones(stop - start)
        part = batch_totals(jnp.asarray(logits[rows]), labels[rows], weights)
        totals = totals.plus(part)

    log_sum = np.log(np.exp(logits).sum(1))
    loss = (log_sum - logits[np.arange(11), labels]).mean()
    assert totals.means() == {
        "loss": pytest.approx(loss, rel=1e-5),
        "accuracy": pytest.approx((logits.argmax(1) == labels).mean()),
        "examples": 11,
    }


def test_a_filler_row_counts_nothing_even_when_it_is_not_finite():
    logits = jnp.array([[2.0, 0.0], [jnp.nan, jnp.inf]])
    totals = batch_totals(logits, jnp.array([0, 0]), jnp.array([1.0, 0.0]))
    assert totals.means()["loss"] == pytest.approx(np.log1p(np.exp(-2)), rel=1e-5)
    assert totals.means()["examples"] == 1


def test_a_wrong_prediction_lowers_the_accuracy():
    logits = jnp.array([[2.0, 0.0], [2.0, 0.0]])
    totals = batch_totals(logits, jnp.array([0, 1]), jnp.ones(2))
    assert totals.means()["accuracy"] == 0.5
