"""Classification of tokens against a transcription in numpy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.heads import TokenClassifier
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.gradients import batch_gradient
from nystromformer.training.metrics import Totals
from nystromformer.training.positions import Positions
from nystromformer.training.step import split_weights

B, L, K, C, V = 12, 10, 4, 5, 7
RNG = np.random.default_rng(0)
INPUTS = RNG.integers(1, V, (B, L))
LENGTHS = np.arange(B) % (L - 3) + 4
LABELS = np.full((B, L), -1)
for number, (row, length) in enumerate(zip(LABELS, LENGTHS, strict=True)):
    labelled = RNG.permutation(length)[: number % (K + 1)]  # 0 to K of them
    row[labelled] = RNG.integers(0, C, len(labelled))
WEIGHTS = np.float32([1] * (B - 2) + [0, 0])  # two filler rows, with labels


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
        indices=jnp.arange(B)[rows],
    )


def measured(model, batch, num_labels=K, key=None):
    sums = jax.jit(lambda x: Positions(num_labels)(model, x, key))(batch)
    return jax.tree.map(float, sums)


def test_positions_counts_each_label_once_and_no_filler_row(model):
    logits = np.float64(nnx.jit(model)(batch().inputs, batch().mask))
    loss = correct = count = 0
    for b, t in np.argwhere(LABELS[:-2] >= 0):
        row, label = logits[b, t], LABELS[b, t]
        loss += np.log(np.exp(row).sum()) - row[label]
        correct += row.argmax() == label
        count += 1
    assert count > K
    for num_labels in (K, L, 2 * L):  # more than there are changes nothing
        sums = measured(model, batch(), num_labels)
        assert sums["loss"] == (pytest.approx(loss, rel=1e-5), count)
        assert sums["accuracy"] == (correct, count)


def test_positions_ignores_filler_rows_however_labelled(model):
    other = LABELS.copy()
    other[-2:] = RNG.integers(-1, C, (2, L))
    assert measured(model, batch(labels=other)) == measured(model, batch())


def test_positions_has_no_gradient_without_a_label(model):
    """Rows without labels, a batch of them too: neither NaN nor a share of the loss."""
    graphdef, weights = split_weights(model)

    def loss(params):
        none = batch(labels=np.full((B, L), -1))
        of = nnx.merge(graphdef, params, weights.variables)
        return Positions(K)(of, none, None)["loss"][0]

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
    programs = jit_programs(make_model, Positions(K))
    whole = evaluate(programs, weights, make_data(), B)
    sums = measured(model, batch(weights=np.ones(B, np.float32)))
    expected = {name: total / count for name, (total, count) in sums.items()}
    assert whole == pytest.approx({**expected, "examples": B}, rel=1e-5)
    cut = evaluate(programs, weights, make_data(), 5, length_buckets=2)
    assert cut == pytest.approx(whole)


@pytest.mark.parametrize("parts", [{"grad_accum_steps": 3}, {"length_buckets": 2}])
def test_positions_gradient_of_parts_is_that_of_the_batch(model, parts):
    """Parts with different numbers of labels: their sums are divided once."""
    graphdef, (params, variables) = split_weights(model)

    def forward(params, variables, batch, key):
        of = nnx.merge(graphdef, params, variables)
        totals = Totals(Positions(K)(of, batch, key), batch.weights.sum())
        return totals, variables

    data, key = make_data().put(), jax.random.key(0)

    def gradient(**parts):
        arguments = (forward, params, variables, data, jnp.arange(B), key)
        gradient = jax.jit(lambda: batch_gradient(*arguments, **parts))()
        return jax.tree.leaves((gradient.params, gradient.totals))

    for leaf, whole_leaf in zip(gradient(**parts), gradient(), strict=True):
        np.testing.assert_allclose(leaf, whole_leaf, rtol=1e-4, atol=1e-6)
