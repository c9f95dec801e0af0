"""Classification is as in numpy, over uneven batches too and without filler rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.training.data import Batch
from nystromformer.training.objective import Classification, Totals

OBJECTIVE = Classification()


def totals_of(logits, labels, weights, objective=OBJECTIVE):
    """The totals of one batch, for which a model returns these logits."""
    num_examples = len(labels)
    batch = Batch(
        inputs=jnp.zeros((num_examples, 1), jnp.int32),
        mask=None,
        labels=jnp.array(labels),
        weights=jnp.array(weights),
        example_ids=jnp.zeros(num_examples, jnp.int32),
    )

    @jax.jit
    def compute(logits, batch):
        def model(inputs, mask, dropout_rng):
            return logits

        sums = objective(model, batch, None)
        assert list(sums) == list(objective.metrics)
        return Totals(sums, batch.weights.sum())

    return compute(jnp.asarray(logits), batch)


def test_totals_over_uneven_batches_are_those_over_all_examples():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(11, 5))
    labels = rng.integers(0, 5, 11)

    totals = Totals.zero(OBJECTIVE.metrics)
    for rows in (slice(0, 3), slice(3, 4), slice(4, 11)):
        weights = np.ones(len(labels[rows]))
        totals = totals.plus(totals_of(logits[rows], labels[rows], weights))

    label_logits = logits[np.arange(11), labels]
    losses = np.log(np.exp(logits).sum(1)) - label_logits
    accuracy = (logits.argmax(1) == labels).mean()
    assert 0 < accuracy < 1
    expected = {"loss": losses.mean(), "accuracy": accuracy, "examples": 11}
    assert totals.means() == pytest.approx(expected, rel=1e-5)


def test_a_metric_of_nothing_is_not_a_number():
    """A loss of 0 would be the best of all."""
    means = totals_of([[2.0, 0.0]], [0], [0.0]).means()
    assert means["examples"] == 0
    assert np.isnan([means["loss"], means["accuracy"]]).all()


def test_classification_ignores_a_filler_row_that_is_not_finite():
    totals = totals_of([[2.0, 0.0], [jnp.nan, jnp.inf]], [0, 0], [1.0, 0.0])
    assert totals.means()["loss"] == pytest.approx(np.log1p(np.exp(-2)), rel=1e-5)
    assert totals.means()["examples"] == 1


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    """It is that of class 1, also of three classes."""
    guesses = [1, 1, 0, 1, 2, 1, 1]
    labels = [1, 0, 1, 1, 0, 2, 0]
    # The last row is a filler.
    weights = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    logits = np.eye(3)[guesses]
    objective = Classification(select="f1")

    first = totals_of(logits[:3], labels[:3], weights[:3], objective)
    second = totals_of(logits[3:], labels[3:], weights[3:], objective)

    totals = Totals.zero(objective.metrics).plus(first).plus(second)
    precision = 2 / 4
    recall = 2 / 3
    f1 = 2 * precision * recall / (precision + recall)
    assert totals.means()["f1"] == pytest.approx(f1)


def test_classification_refuses_an_unknown_metric():
    with pytest.raises(ValueError, match="select must be accuracy or f1, got 'F1'"):
        Classification(select="F1")
