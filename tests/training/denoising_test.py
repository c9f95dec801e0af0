"""Class and hidden tokens from one pass: a transcription in numpy, and leaks."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nystromformer.encoder import EncoderConfig
from nystromformer.heads import DenoisingClassifier, DenoisingPairClassifier
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.denoising import ClassificationDenoising
from nystromformer.training.evaluate import evaluate
from nystromformer.training.gradients import batch_gradient
from nystromformer.training.metrics import Totals
from nystromformer.training.objective import Classification
from nystromformer.training.step import split_weights
from tests.tolerance import TOLERANCE, relative_error

B, L, V, C = 12, 24, 11, 3
MASK, SPECIAL = V, 2
LENGTHS = np.array([24, 1, 9, 24, 3, 17, 8, 24, 5, 11, 2, 20])
VALID = np.arange(L) < LENGTHS[:, None]
INPUTS = np.where(VALID, np.random.default_rng(0).integers(3, V, (B, L)), 0)
LABELS = np.arange(B) % C
KEY = jax.random.key(5)  # of a training step


def make_objective(cls=ClassificationDenoising, **options):
    return cls(vocab_size=V, mask_token=MASK, special_tokens=(SPECIAL,), **options)


def make_model(rngs, make=DenoisingClassifier, pooling="mean"):
    config = EncoderConfig(
        vocab_size=V + 1,
        max_length=L,
        num_layers=1,
        model_dim=8,
        mlp_dim=8,
        attention="softmax",
        dropout_rate=0.0,
    )
    model = make(config, num_classes=C, pooling=pooling, rngs=rngs)
    model.encoder.embedding.embedding[...] *= 30  # so that tokens matter
    return model


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


def make_batch(rows=range(B), weights=None, inputs=INPUTS):
    rows = np.array(rows)
    return Batch(
        inputs=jnp.asarray(inputs[rows]),
        mask=jnp.asarray(VALID[rows]),
        labels=jnp.asarray(LABELS[rows]),
        weights=jnp.ones(len(rows)) if weights is None else jnp.asarray(weights),
        indices=jnp.asarray(rows),
    )


def means(objective, model, batch, key=KEY):
    """The metrics of a batch, compiled."""
    sums = jax.jit(lambda batch: objective(model, batch, key))(batch)
    assert set(sums) == {*objective.metrics}
    return {name: float(total / weight) for name, (total, weight) in sums.items()}


def cross_entropy(logits, target):
    logits = np.float64(logits)
    return np.log(np.exp(logits).sum()) - logits[target]


@pytest.mark.parametrize("pooling", ["mean", "cls_token"])
def test_training_equals_a_transcription(pooling):
    """One model on the corrupted input; the loss has the mean of each example."""
    model = make_model(nnx.Rngs(1), pooling=pooling)
    objective = make_objective(denoising_weight=0.7)
    batch = make_batch()
    masked, _ = jax.jit(objective.hide)(batch, KEY)
    class_logits = nnx.jit(model)(masked.inputs, batch.mask)
    vectors, _ = nnx.jit(model.encoder)(masked.inputs, batch.mask)
    token_logits = model.decode(vectors[:, -L:])

    class_losses = []
    token_losses = []
    is_correct = []
    for row in range(B):
        class_losses.append(cross_entropy(class_logits[row], LABELS[row]))
        count = max(1, round(0.3 * LENGTHS[row]))
        assert float(masked.weights[row].sum()) == count
        positions = np.asarray(masked.positions[row, :count])
        targets = INPUTS[row, positions]
        logits = np.asarray(token_logits[row, positions])
        token_losses.append([*map(cross_entropy, logits, targets)])
        is_correct.extend(logits.argmax(1) == targets)

    example_means = [np.mean(losses) for losses in token_losses]
    expected = {
        "loss": np.mean(class_losses) + 0.7 * np.mean(example_means),
        "classification_loss": np.mean(class_losses),
        "accuracy": (np.asarray(class_logits).argmax(1) == LABELS).mean(),
        "denoising_loss": np.mean(np.concatenate(token_losses)),
        "denoising_accuracy": np.mean(is_correct),
    }
    assert means(objective, model, batch) == pytest.approx(expected, rel=1e-5)
    assert 0 < np.mean(is_correct) < 1


def test_training_is_one_pass_and_sees_the_corrupted_input(model):
    calls = []

    def encoder(inputs, mask, dropout_rng):
        calls.append(inputs)
        return model.encoder(inputs, mask, dropout_rng)

    recorded = SimpleNamespace(encoder=encoder, read=model.read, decode=model.decode)
    objective = make_objective()
    objective(recorded, make_batch(), KEY)
    [inputs] = calls
    masked, _ = objective.hide(make_batch(), KEY)
    np.testing.assert_array_equal(inputs, masked.inputs)
    is_changed = np.asarray(inputs) != INPUTS
    assert is_changed.any(1).all()


def check_no_leak(objective, model):
    """Predictions of hidden tokens, and of the class, do not depend on these tokens."""
    masked, _ = objective.hide(make_batch(), KEY)
    is_hidden = np.zeros((B, L), bool)
    rows = np.arange(B)[:, None]
    is_hidden[rows, masked.positions] = np.asarray(masked.weights).astype(bool)
    next_tokens = np.where(INPUTS == V - 1, 3, INPUTS + 1)  # none is special
    other_inputs = np.where(is_hidden, next_tokens, INPUTS)
    assert (other_inputs != INPUTS).any(1).all()

    @jax.jit
    def predict(inputs):
        batch = make_batch()._replace(inputs=inputs)
        masked, mask = objective.hide(batch, KEY)
        vectors, mask = model.encoder(masked.inputs, mask)
        return model.decode(vectors), model.read(vectors, mask, None)

    predictions = predict(INPUTS)
    other_predictions = predict(other_inputs)
    jax.tree.map(np.testing.assert_array_equal, predictions, other_predictions)


@pytest.mark.parametrize("corruption", ["mask_or_random", "mask_only"])
def test_hidden_tokens_do_not_leak_into_the_input(model, corruption):
    check_no_leak(make_objective(corruption=corruption), model)


@pytest.mark.parametrize("kind", ["the input as it is", "one in ten stays"])
def test_a_leak_is_seen(model, kind):
    class Leaking(ClassificationDenoising):
        corruptions = ("bert", "mask_only")

        def hide(self, batch, key):
            masked, mask = super().hide(batch, key)
            if self.corruption == "mask_only":
                masked = masked._replace(inputs=batch.inputs)
            return masked, mask

    corruption = "mask_only" if kind == "the input as it is" else "bert"
    with pytest.raises(AssertionError):
        check_no_leak(make_objective(Leaking, corruption=corruption), model)


def test_mask_or_random_hides_two_thirds_and_replaces_one():
    objective = make_objective(mlm_probability=0.25)
    inputs = jnp.full((4000, 20), 7)
    keys = jax.random.split(jax.random.key(0), 4000)
    masked = jax.jit(objective.mask_tokens)(inputs, None, keys)
    tokens = np.take_along_axis(np.asarray(masked.inputs), masked.positions, 1)
    assert np.mean(tokens == MASK) == pytest.approx(0.67, abs=0.01)
    assert np.mean(tokens == 7) == pytest.approx(0.33 / (V - 1), abs=0.01)
    assert not (tokens == SPECIAL).any()


def test_an_evaluation_reads_the_class_from_the_input_as_it_is(model):
    found = means(make_objective(), model, make_batch(), key=None)
    clean = means(Classification(), model, make_batch(), key=None)
    assert found["accuracy"] == clean["accuracy"]
    assert found["classification_loss"] == pytest.approx(clean["loss"], rel=1e-6)
    trained = means(make_objective(), model, make_batch())
    assert trained["classification_loss"] != pytest.approx(clean["loss"], rel=1e-3)


def make_host_split():
    return HostSplit.from_split(
        SimpleNamespace(
            inputs=INPUTS.astype(np.uint8),
            lengths=LENGTHS.astype(np.int32),
            labels=LABELS.astype(np.int32),
            pairs=None,
        )
    )


def test_an_evaluation_is_the_same_in_any_batches_and_lengths(model):
    _, weights = split_weights(model)
    programs = jit_programs(make_model, make_objective())
    split = make_host_split()
    whole = evaluate(programs, weights, split, B)
    assert whole is not None
    assert whole["examples"] == B
    cut = evaluate(programs, weights, split, 5, length_buckets=2)
    assert cut == pytest.approx(whole, rel=1e-5)


def test_filler_rows_count_nothing(model):
    inputs = np.concatenate([INPUTS[:3], INPUTS[:1]])
    batch = make_batch(range(4), weights=[1.0, 1.0, 1.0, 0.0], inputs=inputs)
    for key in (KEY, None):
        found = means(make_objective(), model, batch, key)
        expected = means(make_objective(), model, make_batch(range(3)), key)
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_gradient_in_parts_and_lengths_is_that_of_the_whole(model):
    """Every token is hidden, so that parts draw no other ones."""
    objective = make_objective(mlm_probability=1.0, corruption="mask_only")
    graphdef, weights = split_weights(model)
    rows = make_host_split().put()

    def forward(params, variables, batch, key):
        model = nnx.merge(graphdef, params, variables, copy=True)
        return Totals(objective(model, batch, key), batch.weights.sum()), variables

    def gradient(**batching):
        run = jax.jit(functools.partial(batch_gradient, forward, **batching))
        gradient = run(*weights, rows, jnp.arange(B), KEY)
        flat, _ = ravel_pytree((gradient.params, gradient.totals))
        return flat

    in_parts = gradient(grad_accum_steps=4, length_buckets=3)
    assert relative_error(in_parts, gradient()) <= TOLERANCE["float32"]


def test_texts_of_a_pair_are_one_example():
    model = make_model(nnx.Rngs(0), DenoisingPairClassifier)
    pairs = Batch(
        inputs=jnp.asarray(INPUTS.reshape(-1, 2, L)),
        mask=jnp.asarray(VALID.reshape(-1, 2, L)),
        labels=jnp.arange(B // 2) % C,
        weights=jnp.ones(B // 2),
        indices=jnp.arange(B // 2),
    )
    objective = make_objective()
    masked, mask = objective.hide(pairs, KEY)
    losses, _ = objective.token_losses(
        model, model.encoder(masked.inputs, mask)[0], masked
    )
    tokens_per_pair = np.asarray(masked.weights.sum(1)).reshape(-1, 2).sum(1)
    losses_of_pairs = np.asarray(losses.sum(1)).reshape(-1, 2).sum(1) / tokens_per_pair
    metrics = means(objective, model, pairs)
    expected = metrics["classification_loss"] + losses_of_pairs.mean()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    clean = means(Classification(), model, pairs, key=None)
    assert means(objective, model, pairs, key=None)["accuracy"] == clean["accuracy"]


@pytest.mark.parametrize(
    "options",
    [{"corruption": "bert"}, {"denoising_weight": -1.0}, {"mlm_probability": 1.5}],
)
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make_objective(**options)
