"""Masked tokens against counts and a transcription in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.token_models import MaskedLanguageModel
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.masked import MaskedOrder, MaskedTokens
from nystromformer.training.step import Programs, split_weights

# Batch, length and vocabulary, and the ids of two special tokens.
B = 64
L = 40
V = 11
MASK = 11
CLS = 2
LENGTHS = np.arange(B) % (L - 3) + 3
VALID = np.arange(L) < LENGTHS[:, None]
TOKENS = np.random.default_rng(0).integers(1, V, (B, L))
INPUTS = np.where(VALID, TOKENS, 0)
INPUTS[:, 0] = CLS


def make_objective(cls=MaskedTokens, **options):
    return cls(vocab_size=V, mask_token=MASK, special_tokens=(CLS,), **options)


def make_batch(rows):
    return Batch(
        inputs=jnp.asarray(INPUTS[rows]),
        mask=jnp.asarray(VALID[rows]),
        labels=jnp.zeros(len(rows), int),
        weights=jnp.ones(len(rows)),
        example_ids=jnp.asarray(rows),
    )


def compute_sums(objective, model, batch, key=None):
    """The sums of the objective and their weights, compiled."""
    return jax.jit(lambda batch, key: objective(model, batch, key))(batch, key)


def make_model(rngs):
    config = EncoderConfig(
        vocab_size=V + 1,
        max_length=L,
        num_layers=1,
        model_dim=8,
        attention="softmax",
        dropout_rate=0.0,
    )
    return MaskedLanguageModel(config, rngs=rngs)


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


@pytest.mark.parametrize(("probability", "most"), [(0.2, 8), (0.01, 1)])
def test_mask_tokens_masks_valid_ordinary_tokens_and_at_least_one(probability, most):
    mlm = make_objective(mlm_probability=probability, corruption="mask_only")
    keys = jax.random.split(jax.random.key(3), B)
    masked = jax.jit(mlm.mask_tokens)(INPUTS, VALID, keys)
    assert masked.positions.shape == (B, most)
    is_changed = np.asarray(masked.inputs) != INPUTS
    is_ordinary = VALID & (INPUTS != CLS)
    assert not is_changed[~is_ordinary].any()
    num_masked = np.maximum(np.round(probability * is_ordinary.sum(1)), 1)
    np.testing.assert_array_equal(is_changed.sum(1), num_masked)
    np.testing.assert_array_equal(masked.weights.sum(1), num_masked)
    assert (np.asarray(masked.inputs)[is_changed] == MASK).all()
    rows = np.arange(B)[:, None]
    np.testing.assert_array_equal(masked.targets, INPUTS[rows, masked.positions])


def test_mask_tokens_masks_nothing_of_special_tokens_alone():
    inputs = jnp.full((2, 20), CLS)
    mask = jnp.arange(20)[None] < jnp.array([[7], [0]])
    keys = jax.random.split(jax.random.key(0), 2)
    masked = jax.jit(make_objective().mask_tokens)(inputs, mask, keys)
    np.testing.assert_array_equal(masked.inputs, inputs)
    assert not masked.weights.any()


def test_mask_tokens_hides_the_same_with_and_without_padding():
    """The share is 28.5 tokens, which float32 and float64 round to other numbers."""
    inputs = jnp.full((1, 256), 7)
    mask = jnp.arange(256)[None] < 190
    keys = jax.random.split(jax.random.key(0), 1)
    mask_tokens = jax.jit(make_objective(mlm_probability=0.15).mask_tokens)
    padded = mask_tokens(inputs, mask, keys)
    alone = mask_tokens(inputs[:, :190], None, keys)
    np.testing.assert_array_equal(padded.inputs[:, :190], alone.inputs)


def test_mask_tokens_masks_all_positions_equally_and_corrupts_as_bert():
    keys = jax.random.split(jax.random.key(0), 4000)
    inputs = jnp.full((4000, 20), 7)
    masked = jax.jit(make_objective(mlm_probability=0.25).mask_tokens)(
        inputs, None, keys
    )
    positions = np.asarray(masked.positions)
    tokens = np.take_along_axis(np.asarray(masked.inputs), positions, 1)
    assert np.mean(tokens == MASK) == pytest.approx(0.8, abs=0.01)
    assert np.mean(tokens == 7) == pytest.approx(0.1 + 0.1 / (V - 1), abs=0.01)
    assert not (tokens == CLS).any()
    frequencies = np.bincount(positions.ravel(), minlength=20) / 4000
    np.testing.assert_allclose(frequencies, 0.25, atol=0.03)


def test_masked_tokens_loss_and_accuracy_equal_a_transcription(model):
    mlm = make_objective(mlm_probability=0.2)
    rows = np.arange(5, 9)
    examples = make_batch(rows)

    sums = compute_sums(mlm, model, examples)

    # An evaluation masks by the key of seed 0 and the row.
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(0), row))(rows)
    masked = jax.jit(mlm.mask_tokens)(examples.inputs, examples.mask, keys)
    logits = np.float64(nnx.jit(model)(masked.inputs, examples.mask))
    losses = []
    num_correct = 0
    for row, index in np.argwhere(np.asarray(masked.weights)):
        token_logits = logits[row, masked.positions[row, index]]
        target = masked.targets[row, index]
        losses.append(np.log(np.exp(token_logits).sum()) - token_logits[target])
        num_correct += token_logits.argmax() == target
    loss, weight = sums["loss"]
    assert float(loss) == pytest.approx(sum(losses), rel=1e-5)
    assert float(weight) == len(losses)
    assert float(sums["mlm_accuracy"][0]) == num_correct


@pytest.fixture(scope="module")
def single_passes(model):
    """By row: the sums of MaskedTokens of it alone, and its logit of the order."""
    mlm = make_objective(mlm_probability=0.2)

    @jax.jit
    def single_pass(batch, keys):
        masked = mlm.mask_tokens(batch.inputs, batch.mask, keys)
        vectors, _ = model.encoder(masked.inputs, batch.mask)
        return mlm(model, batch, None), vectors[0, 0, 0]

    passes = {}
    for row in (9, 3, 20):
        keys = jax.random.fold_in(jax.random.key(0), row)[None]
        passes[row] = jax.device_get(single_pass(make_batch([row]), keys))
    return passes


@pytest.mark.parametrize("filler_label", [0, 1])
def test_masked_order_equals_its_parts(model, single_passes, filler_label):
    """The loss is the mean of each real row's two losses.

    The last row is filler. Whether its label is guessed or not changes nothing.
    """

    class ModelWithOrder:
        encoder = model.encoder
        decode = model.decode

        def order(self, vectors):
            return jnp.stack([vectors[:, 0, 0], jnp.zeros(len(vectors))], axis=1)

    labels = np.array([1, 0, 1, filler_label])
    examples = make_batch(np.array([*single_passes, 31]))._replace(
        labels=labels, weights=jnp.array([1.0, 1.0, 1.0, 0.0])
    )
    mlm_sop = make_objective(MaskedOrder, mlm_probability=0.2)
    sums = compute_sums(mlm_sop, ModelWithOrder(), examples)
    assert set(sums) == set(MaskedOrder.metrics)
    metrics = {name: float(total / weight) for name, (total, weight) in sums.items()}

    single_sums = [sums for sums, _ in single_passes.values()]
    losses = np.array([float(sums["loss"][0]) for sums in single_sums])
    num_tokens = np.array([float(sums["loss"][1]) for sums in single_sums])
    num_correct = [sums["mlm_accuracy"][0] for sums in single_sums]
    order_logits = np.array([float(logit) for _, logit in single_passes.values()])
    # The two classes have this logit and 0; a negative one guesses class 1.
    signs = np.where(labels[:3] == 1, 1, -1)
    order_losses = np.log1p(np.exp(signs * order_logits))
    is_right = (order_logits < 0) == labels[:3]

    expected = {
        "loss": (losses / num_tokens + order_losses).mean(),
        "mlm_loss": losses.sum() / num_tokens.sum(),
        "mlm_accuracy": sum(num_correct) / num_tokens.sum(),
        "sop_loss": order_losses.mean(),
        "sop_accuracy": is_right.mean(),
    }
    assert metrics == pytest.approx(expected, rel=1e-5)
    assert 0 < is_right.mean() < 1
    assert len(set(num_tokens)) > 1


def test_masked_tokens_evaluation_is_the_same_in_any_batches_and_lengths(model):
    split = HostSplit(
        inputs=INPUTS.astype(np.uint8),
        lengths=LENGTHS.astype(np.int32),
        labels=np.zeros(B, np.int32),
        pairs=None,
    )
    _, weights = split_weights(model)
    programs = Programs(make_model, make_objective(mlm_probability=0.2))
    expected = evaluate(programs, weights, split, batch_size=B)
    assert expected["examples"] == B
    actual = evaluate(programs, weights, split, batch_size=7, length_buckets=2)
    assert actual == pytest.approx(expected)


def test_masked_tokens_takes_pairs_as_two_examples(model):
    pairs = Batch(
        inputs=jnp.asarray(INPUTS[:4].reshape(2, 2, L)),
        mask=jnp.asarray(VALID[:4].reshape(2, 2, L)),
        labels=jnp.zeros(2, int),
        weights=jnp.ones(2),
        example_ids=jnp.arange(2),
    )
    loss, _ = compute_sums(make_objective(), model, pairs)["loss"]
    four_rows = make_batch(np.arange(4))
    expected, _ = compute_sums(make_objective(), model, four_rows)["loss"]
    assert float(loss) == pytest.approx(float(expected), 1e-6)


@pytest.mark.parametrize("pair", [0, 1])
def test_masked_tokens_of_a_filler_pair_weigh_nothing(model, pair):
    """The sums are those of the real pair alone; both texts of the filler are left."""
    inputs = jnp.asarray(INPUTS[-4:].reshape(2, 2, L))
    mask = jnp.asarray(VALID[-4:].reshape(2, 2, L))
    pairs = Batch(
        inputs=inputs,
        mask=mask,
        labels=jnp.zeros(2, int),
        weights=jnp.zeros(2).at[pair].set(1.0),
        example_ids=jnp.arange(2),
    )
    real_pair = Batch(
        inputs=inputs[pair][None],
        mask=mask[pair][None],
        labels=jnp.zeros(1, int),
        weights=jnp.ones(1),
        example_ids=jnp.array([pair]),
    )

    sums = compute_sums(make_objective(mlm_probability=0.4), model, pairs)
    expected = compute_sums(make_objective(mlm_probability=0.4), model, real_pair)

    assert expected["loss"][1] > 0
    for name, (total, weight) in expected.items():
        assert float(sums[name][0]) == pytest.approx(float(total), rel=1e-5)
        assert float(sums[name][1]) == pytest.approx(float(weight), rel=1e-5)


@pytest.mark.parametrize("options", [{"mlm_probability": 0.0}, {"corruption": "hide"}])
def test_masked_tokens_refuses_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make_objective(**options)
