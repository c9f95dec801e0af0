"""Classification of tokens against a transcription in numpy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nystromformer.classifiers import TokenClassifier
from nystromformer.encoder import EncoderConfig
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Positions, Totals
from nystromformer.training.step import Programs, batch_gradient, split_weights
from tests.tolerance import TOLERANCE, relative_error

# Batch, length, labels of a row at most, classes and vocabulary.
B = 12
L = 10
K = 4
C = 5
V = 7
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(1, V, (B, L))
LENGTHS = np.arange(B) % (L - 3) + 4
# Row i has labels at i modulo K + 1 tokens.
LABELS = np.full((B, L), -1)
for i, length in enumerate(LENGTHS):
    positions = RNG.permutation(length)[: i % (K + 1)]
    LABELS[i, positions] = RNG.integers(0, C, len(positions))
# The last two rows are fillers, with labels.
WEIGHTS = np.ones(B, np.float32)
WEIGHTS[-2:] = 0


def make_model(rngs):
    config = EncoderConfig(
        vocab_size=V,
        max_length=L,
        num_layers=1,
        model_dim=8,
        attention="softmax",
        dropout_rate=0.0,
    )
    return TokenClassifier(config, num_classes=C, rngs=rngs)


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


def batch(rows=slice(None), weights=WEIGHTS, labels=LABELS):
    mask = np.arange(L) < LENGTHS[:, None]
    return Batch(
        inputs=jnp.asarray(INPUTS[rows]),
        mask=jnp.asarray(mask[rows]),
        labels=jnp.asarray(labels[rows]),
        weights=jnp.asarray(weights[rows]),
        example_ids=jnp.arange(B)[rows],
    )


def compute_sums(model, batch, num_labels=K):
    """The sums of the objective and their weights, compiled."""
    sums = jax.jit(lambda batch: Positions(num_labels)(model, batch, None))(batch)
    return jax.tree.map(float, sums)


def test_positions_counts_each_label_once_and_no_filler_row(model):
    logits = np.float64(nnx.jit(model)(batch().inputs, batch().mask))
    losses = []
    num_correct = 0
    for row, position in np.argwhere(LABELS[:-2] >= 0):
        token_logits = logits[row, position]
        label = LABELS[row, position]
        losses.append(np.log(np.exp(token_logits).sum()) - token_logits[label])
        num_correct += token_logits.argmax() == label
    count = len(losses)
    assert count > K

    # A number of labels that is larger than needed changes nothing.
    for num_labels in (K, L, 2 * L):
        sums = compute_sums(model, batch(), num_labels)
        assert sums["loss"] == (pytest.approx(sum(losses), rel=1e-5), count)
        assert sums["accuracy"] == (num_correct, count)


def test_positions_ignores_filler_rows_however_labelled(model):
    other_labels = LABELS.copy()
    other_labels[-2:] = np.random.default_rng(1).integers(-1, C, (2, L))
    sums = compute_sums(model, batch(labels=other_labels))
    expected = compute_sums(model, batch())
    error = relative_error(list(sums.values()), list(expected.values()))
    assert error <= TOLERANCE["same"]


def test_positions_has_no_gradient_without_a_label(model):
    """A batch without any label has neither a NaN nor a share of the loss."""
    graphdef, weights = split_weights(model)
    unlabelled_batch = batch(labels=np.full((B, L), -1))

    def loss(params):
        merged = nnx.merge(graphdef, params, weights.variables)
        return Positions(K)(merged, unlabelled_batch, None)["loss"][0]

    gradient = jax.jit(jax.grad(loss))(weights.params)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))


def make_data(lengths=LENGTHS):
    split = SimpleNamespace(
        inputs=np.where(np.arange(L) < lengths[:, None], INPUTS, 0).astype(np.uint8),
        lengths=lengths.astype(np.int32),
        labels=LABELS.astype(np.int32),
        pairs=None,
    )
    return HostSplit.from_split(split)


def test_positions_evaluation_is_the_same_in_any_batches_and_lengths(model):
    _, weights = split_weights(model)
    programs = Programs(make_model, Positions(K))
    metrics = evaluate(programs, weights, make_data(), B)
    sums = compute_sums(model, batch(weights=np.ones(B, np.float32)))
    expected = {name: total / count for name, (total, count) in sums.items()}
    assert metrics == pytest.approx({**expected, "examples": B}, rel=1e-5)

    cut_metrics = evaluate(programs, weights, make_data(), 5, length_buckets=2)
    assert cut_metrics == pytest.approx(metrics)


@pytest.mark.parametrize("parts", [{"grad_accum_steps": 3}, {"length_buckets": 2}])
def test_positions_gradient_of_parts_is_that_of_the_batch(model, parts):
    """Parts have different numbers of labels: their sums are divided once."""
    graphdef, (params, variables) = split_weights(model)

    def forward(params, variables, batch, key):
        merged = nnx.merge(graphdef, params, variables)
        sums = Positions(K)(merged, batch, key)
        return Totals(sums, batch.weights.sum()), variables

    rows = make_data().put()

    def compute_gradient(**parts):
        """The numbers of the gradient and of the totals, in one vector."""

        @jax.jit
        def compute():
            return batch_gradient(
                forward,
                params,
                variables,
                rows,
                places=jnp.arange(B),
                key=jax.random.key(0),
                **parts,
            )

        gradient = compute()
        vector, _ = ravel_pytree((gradient.params, gradient.totals))
        return vector

    error = relative_error(compute_gradient(**parts), compute_gradient())
    assert error <= TOLERANCE["float32"]
