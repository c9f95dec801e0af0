"""Masked tokens against counts and a transcription in numpy."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.heads import MaskedLanguageModel
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.step import split_weights

B, L, V, MASK, CLS = 64, 40, 11, 11, 2
LENGTHS = np.arange(B) % (L - 3) + 3
VALID = np.arange(L) < LENGTHS[:, None]
INPUTS = np.where(VALID, np.random.default_rng(0).integers(1, V, (B, L)), 0)
INPUTS[:, 0] = CLS


def objective(cls=MaskedTokens, **options):
    return cls(vocab_size=V, mask_token=MASK, special_tokens=(CLS,), **options)


def batch(rows, inputs=INPUTS):
    ones = jnp.ones(len(rows))
    mask = jnp.asarray(VALID[rows])
    labels = jnp.zeros(len(rows), int)
    return Batch(jnp.asarray(inputs[rows]), mask, labels, ones, jnp.asarray(rows))


def measured(of, model, batch, key=None):
    """The sums of the objective, compiled."""
    return jax.jit(lambda batch: of(model, batch, key))(batch)


def make_model(rngs):
    sizes = {"vocab_size": V + 1, "max_length": L, "num_layers": 1, "model_dim": 8}
    config = EncoderConfig(**sizes, attention="softmax", dropout_rate=0.0)
    return MaskedLanguageModel(config, rngs=rngs)


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


def test_mask_tokens_chooses_valid_ordinary_tokens_and_at_least_one():
    of = objective(mlm_probability=0.2, corruption="mask_only")
    keys = jax.random.split(jax.random.key(3), B)
    masked = jax.jit(of.mask_tokens)(INPUTS, VALID, keys)
    assert masked.positions.shape == (B, 8)
    changed = np.asarray(masked.inputs) != INPUTS
    ordinary = VALID & (INPUTS != CLS)
    assert not changed[~ordinary].any()
    wanted = np.maximum(np.round(0.2 * ordinary.sum(1)), 1)
    np.testing.assert_array_equal(changed.sum(1), wanted)
    np.testing.assert_array_equal(masked.weights.sum(1), wanted)
    assert (np.asarray(masked.inputs)[changed] == MASK).all()
    rows = np.arange(B)[:, None]
    np.testing.assert_array_equal(masked.targets, INPUTS[rows, masked.positions])


def test_mask_tokens_hides_the_same_with_and_without_padding():
    """28.5 of 190 tokens, which float32 and float64 round to different numbers."""
    inputs, keys = jnp.full((1, 256), 7), jax.random.split(jax.random.key(0), 1)
    mask = jnp.arange(256)[None] < 190
    mask_tokens = jax.jit(objective(mlm_probability=0.15).mask_tokens)
    padded = mask_tokens(inputs, mask, keys)
    alone = mask_tokens(inputs[:, :190], None, keys)
    np.testing.assert_array_equal(padded.inputs[:, :190], alone.inputs)


def test_mask_tokens_chooses_all_positions_equally_and_corrupts_as_bert():
    keys = jax.random.split(jax.random.key(0), 4000)
    inputs = jnp.full((4000, 20), 7)
    masked = jax.jit(objective(mlm_probability=0.25).mask_tokens)(inputs, None, keys)
    where = np.asarray(masked.positions)
    found = np.take_along_axis(np.asarray(masked.inputs), where, 1)
    assert np.mean(found == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(found == 7) == pytest.approx(0.1 + 0.1 / (V - 1), abs=0.01)
    assert not (found == CLS).any()
    positions = np.bincount(np.asarray(masked.positions).ravel(), minlength=20) / 4000
    np.testing.assert_allclose(positions, 0.25, atol=0.03)


def test_masked_tokens_loss_and_accuracy_equal_a_transcription(model):
    of = objective(mlm_probability=0.2)
    rows = np.arange(5, 9)
    sums = measured(of, model, batch(rows))
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(rows)
    masked = jax.jit(of.mask_tokens)(batch(rows).inputs, batch(rows).mask, keys)
    logits = np.float64(nnx.jit(model)(masked.inputs, batch(rows).mask))
    loss = correct = count = 0
    for b, k in np.argwhere(np.asarray(masked.weights)):
        row, target = logits[b, masked.positions[b, k]], masked.targets[b, k]
        loss += np.log(np.exp(row).sum()) - row[target]
        correct += row.argmax() == target
        count += 1
    assert float(sums["loss"][0]) == pytest.approx(loss, rel=1e-5)
    assert (float(sums["mlm_accuracy"][0]), float(sums["loss"][1])) == (correct, count)


@pytest.mark.parametrize("filler_label", [0, 1])  # one of which the model guesses
def test_masked_order_equals_its_parts(model, filler_label):
    """The loss: the mean of both without the filler row; each metric by itself."""

    class Both:
        encoder, decode = model.encoder, model.decode

        def order(self, x):
            return jnp.stack([x[:, 0, 0], jnp.zeros(len(x))], axis=1)

    rows, labels = np.array([9, 3, 20, 31]), np.array([1, 0, 1, filler_label])
    whole = batch(rows)._replace(labels=labels, weights=jnp.array([1.0, 1.0, 1.0, 0]))
    mlm = objective(mlm_probability=0.2)
    sums = measured(objective(MaskedOrder, mlm_probability=0.2), Both(), whole)
    assert set(sums) == {*MaskedOrder.metrics}
    found = {name: float(total / weight) for name, (total, weight) in sums.items()}

    mask_tokens, encode = jax.jit(mlm.mask_tokens), nnx.jit(model.encoder)
    each, order = [], []
    for row, label in zip(rows[:3], labels, strict=False):
        alone = measured(mlm, model, batch([row]))
        each.append((*map(float, alone["loss"]), float(alone["mlm_accuracy"][0])))
        keys = jax.random.fold_in(jax.random.key(0), row)[None]
        hidden = mask_tokens(batch([row]).inputs, VALID[[row]], keys)
        z = float(encode(hidden.inputs, VALID[[row]])[0][0, 0, 0])
        order.append((np.log1p(np.exp(z if label else -z)), (z < 0) == label))
    loss, count, correct = np.array(each).T
    order, right = np.array(order, float).T
    assert found["mlm_loss"] == pytest.approx(loss.sum() / count.sum(), rel=1e-5)
    assert found["mlm_accuracy"] == pytest.approx(correct.sum() / count.sum())
    assert found["sop_loss"] == pytest.approx(order.mean(), rel=1e-5)
    assert found["sop_accuracy"] == pytest.approx(right.mean())
    assert found["loss"] == pytest.approx((loss / count + order).mean(), rel=1e-5)
    assert 0 < right.mean() < 1
    assert len({*count}) > 1


def test_masked_tokens_evaluation_is_the_same_in_any_batches_and_lengths(model):
    inputs, lengths = INPUTS.astype(np.uint8), LENGTHS.astype(np.int32)
    split = {"inputs": inputs, "lengths": lengths, "labels": np.zeros(B, np.int32)}
    data = HostSplit.from_split(SimpleNamespace(**split, pairs=None))
    _, weights = split_weights(model)
    programs = jit_programs(make_model, objective(mlm_probability=0.2))
    whole = evaluate(programs, weights, data, 64)
    assert whole == pytest.approx(evaluate(programs, weights, data, 7))
    cut = evaluate(programs, weights, data, 8, length_buckets=3)
    assert whole == pytest.approx(cut)
    rows = batch(np.arange(6))
    keys = (None, jax.random.key(9), jax.random.key(8))  # evaluation, and two steps
    drawn = [measured(objective(), model, rows, key)["loss"][0] for key in keys]
    assert len(set(map(float, drawn))) == 3


def test_masked_tokens_takes_pairs_as_two_examples(model):
    inputs, mask = (jnp.asarray(x[:4].reshape(2, 2, L)) for x in (INPUTS, VALID))
    pair = Batch(inputs, mask, jnp.zeros(2, int), jnp.ones(2), jnp.arange(2))
    single = measured(objective(), model, batch(np.arange(4)))
    found = measured(objective(), model, pair)
    assert float(found["loss"][0]) == pytest.approx(float(single["loss"][0]), 1e-6)


@pytest.mark.parametrize("options", [{"mlm_probability": 0.0}, {"corruption": "hide"}])
def test_masked_tokens_refuses_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        objective(**options)
