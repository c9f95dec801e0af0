"""Classification in numpy; totals exact over uneven batches, blind to filler rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training.data import Batch
from nystromformer.training.metrics import Totals
from nystromformer.training.objective import Classification

OBJECTIVE = Classification()


def totals_of(logits, labels, weights, objective=OBJECTIVE):
    """Of a model that says these logits."""
    inputs = jnp.zeros((len(labels), 1), jnp.int32)
    batch = Batch(inputs, None, jnp.array(labels), jnp.array(weights), inputs[:, 0])

    def model(inputs, mask, dropout_rng):
        return jnp.asarray(logits)

    sums = objective(model, batch, None)
    assert list(sums) == list(objective.metrics)
    return Totals(sums, batch.weights.sum())


def test_totals_over_uneven_batches_are_those_over_all_examples():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(11, 5))
    labels = rng.integers(0, 5, 11)
    totals = Totals.zero(OBJECTIVE.metrics)
    for rows in np.split(np.arange(11), [3, 4]):
        totals = totals.plus(totals_of(logits[rows], labels[rows], [1.0] * len(rows)))
    loss = (np.log(np.exp(logits).sum(1)) - logits[np.arange(11), labels]).mean()
    accuracy = (logits.argmax(1) == labels).mean()
    assert 0 < accuracy < 1
    expected = {"loss": loss, "accuracy": accuracy, "examples": 11}
    assert totals.means() == pytest.approx(expected, rel=1e-5)


def test_classification_ignores_a_filler_row_that_is_not_finite():
    totals = totals_of([[2.0, 0.0], [jnp.nan, jnp.inf]], [0, 0], [1.0, 0.0])
    assert totals.means()["loss"] == pytest.approx(np.log1p(np.exp(-2)), rel=1e-5)
    assert totals.means()["examples"] == 1


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    guesses, labels = [1, 1, 0, 1, 0, 1, 1], [1, 0, 1, 1, 0, 0, 0]
    objective = Classification(select="f1")
    totals = Totals.zero(objective.metrics)
    for rows, weights in ((slice(0, 3), [1.0] * 3), (slice(3, 7), [1.0] * 3 + [0.0])):
        logits = np.eye(2)[guesses[rows]]
        totals = totals.plus(totals_of(logits, labels[rows], weights, objective))
    precision, recall = 2 / 4, 2 / 3
    f1 = 2 * precision * recall / (precision + recall)
    assert totals.means()["f1"] == pytest.approx(f1)
    with pytest.raises(ValueError, match="select must be accuracy or f1, got 'F1'"):
        Classification(select="F1")
