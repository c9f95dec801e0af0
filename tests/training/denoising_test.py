"""The class and the masked tokens come from one pass, as in numpy."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nystromformer.token_models import DenoisingPairClassifier
from nystromformer.training.data import Batch, HostSplit
from nystromformer.training.evaluate import evaluate
from nystromformer.training.objective import Classification, Totals
from nystromformer.training.step import Programs, batch_gradient, split_weights
from tests.tolerance import TOLERANCE, relative_error
from tests.training.denoising_cases import (
    INPUTS,
    KEY,
    LABELS,
    LENGTHS,
    MASK,
    SPECIAL,
    VALID,
    B,
    C,
    L,
    V,
    make_batch,
    make_model,
    make_objective,
)


@pytest.fixture(scope="module")
def model():
    return make_model(nnx.Rngs(0))


def means(objective, model, batch, key=KEY):
    """The metrics of a batch, compiled."""
    sums = jax.jit(lambda batch: objective(model, batch, key))(batch)
    assert set(sums) == set(objective.metrics)
    return {name: float(total / weight) for name, (total, weight) in sums.items()}


def cross_entropy(logits, target):
    logits = np.float64(logits)
    return np.log(np.exp(logits).sum()) - logits[target]


@pytest.mark.parametrize("pooling", ["mean", "cls_token"])
def test_denoising_losses_and_accuracies_are_those_of_numpy(pooling):
    """One model on the masked input; an example's loss is the mean of its tokens."""
    model = make_model(nnx.Rngs(1), pooling=pooling)
    objective = make_objective(denoising_weight=0.7)
    batch = make_batch()
    masked, _ = jax.jit(objective.mask_batch)(batch, KEY)
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
        token_losses.append(list(map(cross_entropy, logits, targets)))
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


def test_denoising_is_one_pass_and_sees_the_masked_input(model):
    objective = make_objective()

    @jax.jit
    def encoder_inputs(batch):
        """The inputs of each call of the encoder."""
        calls = []

        def encoder(inputs, mask, dropout_rng):
            calls.append(inputs)
            return model.encoder(inputs, mask, dropout_rng)

        parts = {"encoder": encoder, "read": model.read, "decode": model.decode}
        objective(SimpleNamespace(**parts), batch, KEY)
        return calls

    (inputs,) = encoder_inputs(make_batch())
    masked, _ = jax.jit(objective.mask_batch)(make_batch(), KEY)
    np.testing.assert_array_equal(inputs, masked.inputs)
    is_changed = np.asarray(inputs) != INPUTS
    assert is_changed.any(1).all()


def test_mask_or_random_hides_two_thirds_and_replaces_one():
    objective = make_objective(mlm_probability=0.25)
    inputs = jnp.full((4000, 20), 7)
    keys = jax.random.split(jax.random.key(0), 4000)
    masked = jax.jit(objective.mask_tokens)(inputs, None, keys)
    tokens = np.take_along_axis(np.asarray(masked.inputs), masked.positions, 1)
    assert np.mean(tokens == MASK) == pytest.approx(0.67, abs=0.01)
    assert np.mean(tokens == 7) == pytest.approx(0.33 / (V - 1), abs=0.01)
    assert not (tokens == SPECIAL).any()


def test_denoising_evaluation_reads_the_class_from_the_input_as_it_is(model):
    evaluation = means(make_objective(), model, make_batch(), key=None)
    expected = means(Classification(), model, make_batch(), key=None)
    assert evaluation["accuracy"] == pytest.approx(expected["accuracy"])
    loss = pytest.approx(expected["loss"], rel=1e-6)
    assert evaluation["classification_loss"] == loss

    training = means(make_objective(), model, make_batch())
    loss = pytest.approx(expected["loss"], rel=1e-3)
    assert training["classification_loss"] != loss


SPLIT = HostSplit(
    inputs=INPUTS.astype(np.uint8),
    lengths=LENGTHS.astype(np.int32),
    labels=LABELS.astype(np.int32),
    pairs=None,
)


def test_denoising_evaluation_is_the_same_in_any_batches_and_lengths(model):
    _, weights = split_weights(model)
    programs = Programs(make_model, make_objective())
    expected = evaluate(programs, weights, SPLIT, batch_size=B)
    assert expected["examples"] == B
    actual = evaluate(programs, weights, SPLIT, batch_size=5, length_buckets=2)
    assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("key", [KEY, None], ids=["training", "evaluation"])
def test_denoising_ignores_filler_rows(model, key):
    batch = make_batch(4)._replace(weights=jnp.array([1.0, 1.0, 1.0, 0.0]))
    metrics = means(make_objective(), model, batch, key)
    expected = means(make_objective(), model, make_batch(3), key)
    assert metrics == pytest.approx(expected, rel=1e-5)


# positions_test holds this for sums with other numbers of labels in each part.
@pytest.mark.slow
def test_denoising_gradient_in_parts_and_lengths_is_that_of_the_whole(model):
    """Every token is masked, so that the parts mask the same tokens as the whole."""
    objective = make_objective(mlm_probability=1.0, corruption="mask_only")
    graphdef, weights = split_weights(model)
    rows = SPLIT.put()

    def forward(params, variables, batch, key):
        model = nnx.merge(graphdef, params, variables, copy=True)
        return Totals(objective(model, batch, key), batch.weights.sum()), variables

    def gradient(**batching):
        run = jax.jit(functools.partial(batch_gradient, forward, **batching))
        gradient = run(*weights, rows, jnp.arange(B), KEY)
        flat, _ = ravel_pytree((gradient.params, gradient.totals))
        return flat

    in_parts = gradient(grad_accum_steps=3, length_buckets=2)
    assert relative_error(in_parts, gradient()) <= TOLERANCE["float32"]


# Each text and the next are a pair.
NUM_PAIRS = B // 2
PAIRS = Batch(
    inputs=jnp.asarray(INPUTS.reshape(NUM_PAIRS, 2, L)),
    mask=jnp.asarray(VALID.reshape(NUM_PAIRS, 2, L)),
    labels=jnp.arange(NUM_PAIRS) % C,
    weights=jnp.ones(NUM_PAIRS),
    example_ids=jnp.arange(NUM_PAIRS),
)


def test_denoising_takes_the_texts_of_a_pair_as_one_example():
    model = make_model(nnx.Rngs(0), DenoisingPairClassifier)
    objective = make_objective()

    @jax.jit
    def token_losses(pairs):
        masked, padding_mask = objective.mask_batch(pairs, KEY)
        vectors, _ = model.encoder(masked.inputs, padding_mask)
        losses, _ = objective.token_losses(model, vectors, masked)
        return losses, masked.weights

    losses, weights = token_losses(PAIRS)
    # A pair is two rows of masked tokens.
    tokens_per_pair = np.asarray(weights).reshape(NUM_PAIRS, -1).sum(1)
    losses_per_pair = np.asarray(losses).reshape(NUM_PAIRS, -1).sum(1)
    mean_losses = losses_per_pair / tokens_per_pair
    metrics = means(objective, model, PAIRS)
    expected = metrics["classification_loss"] + mean_losses.mean()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_denoising_evaluation_of_pairs_reads_the_class_from_the_input_as_it_is():
    model = make_model(nnx.Rngs(0), DenoisingPairClassifier)
    evaluation = means(make_objective(), model, PAIRS, key=None)
    expected = means(Classification(), model, PAIRS, key=None)
    assert evaluation["accuracy"] == pytest.approx(expected["accuracy"])
    near = pytest.approx(expected["loss"], rel=1e-6)
    assert evaluation["classification_loss"] == near
    # In training some of the tokens are hidden.
    training = means(make_objective(), model, PAIRS)
    assert training["classification_loss"] != near


@pytest.mark.parametrize(
    "options",
    [{"corruption": "bert"}, {"denoising_weight": -1.0}, {"mlm_probability": 1.5}],
)
def test_denoising_refuses_bad_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make_objective(**options)
