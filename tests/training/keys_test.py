"""The seed of a run reaches its weights, its order, its dropout and its masks.

The keys are written out: fold_in(key(seed), 1) for dropout, then the step, then the
part of the batch or the example.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.classifiers import TokenClassifier
from nystromformer.config import TrainConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.experiments.augmentations import augment_batch
from nystromformer.token_models import DenoisingClassifier, MaskedLanguageModel
from nystromformer.training.data import Chunk, HostSplit, train_example_ids
from nystromformer.training.loop import open_run, train
from nystromformer.training.masked import ClassificationDenoising, MaskedTokens
from nystromformer.training.objective import Classification, Positions
from nystromformer.training.step import Programs, split_weights
from tests.training.conftest import (
    CLASSES,
    LENGTH,
    VOCAB,
    BagOfTokens,
    make_split,
    with_functions,
)

fold_in = jax.random.fold_in
KEY = jax.random.key(9)


def compute_sums(objective, model, batch, key=None):
    """The sums of the objective and their weights, compiled."""

    @nnx.jit
    def compute(model, batch, key):
        return objective(model, batch, key)

    sums = compute(model, batch, key)
    return {name: (float(x), float(weight)) for name, (x, weight) in sums.items()}


def take(split, examples):
    """A batch of examples of a split, each with weight 1."""
    data = HostSplit.from_split(split).put()
    return data.take(jnp.asarray(examples), jnp.ones(len(examples)))


def encoder_config(vocab_size):
    """An encoder that compiles fast and drops half."""
    return EncoderConfig(
        vocab_size=vocab_size,
        max_length=LENGTH,
        num_layers=1,
        attention="identity",
        dropout_rate=0.5,
    )


def loss_of_a_step(optimizer, seed, step, split, parts, augment=None):
    """The sum of the losses of one step on all examples of a split."""
    programs = Programs(
        BagOfTokens,
        Classification(),
        optimizer,
        augment=augment,
        grad_accum_steps=parts,
    )
    state = programs.init(np.uint32(seed))._replace(step=jnp.int32(step))
    data = HostSplit.from_split(split).put()
    chunk = Chunk(data, jnp.arange(len(split.labels))[None], 1)
    state, _ = programs.train_chunk(state, chunk)
    return float(state.totals.sums["loss"][0])


def test_a_step_draws_dropout_by_seed_and_step(optimizer):
    split = make_split(0, 8)
    key = fold_in(fold_in(jax.random.key(3), 1), 5)
    model = BagOfTokens(nnx.Rngs(3))

    loss = loss_of_a_step(optimizer, seed=3, step=5, split=split, parts=1)

    sums = compute_sums(Classification(), model, take(split, range(8)), key)
    assert loss == pytest.approx(sums["loss"][0], rel=1e-5)


def test_a_step_in_parts_draws_dropout_by_the_part(optimizer):
    split = make_split(0, 8)
    key = fold_in(fold_in(jax.random.key(3), 1), 5)
    model = BagOfTokens(nnx.Rngs(3))

    loss = loss_of_a_step(optimizer, seed=3, step=5, split=split, parts=2)

    expected = 0.0
    by_length = np.argsort(split.lengths, kind="stable")
    for part, examples in enumerate(np.split(by_length, 2)):
        batch = take(split, examples)
        sums = compute_sums(Classification(), model, batch, fold_in(key, part))
        expected += sums["loss"][0]
    assert loss == pytest.approx(expected, rel=1e-5)


def test_positions_drops_by_its_key():
    model = TokenClassifier(
        encoder_config(VOCAB), num_classes=CLASSES, rngs=nnx.Rngs(0)
    )
    # Every second token has the label 1, and the others have none.
    labels = jnp.where(jnp.arange(LENGTH) % 2 == 0, 1, -1)
    labels = jnp.broadcast_to(labels, (8, LENGTH))
    batch = take(make_split(0, 8), range(8))._replace(labels=labels)

    @nnx.jit
    def by_hand(model):
        losses = -jax.nn.log_softmax(model(batch.inputs, batch.mask, KEY))[:, :, 1]
        return jnp.where(labels == 1, losses, 0).sum()

    loss, _ = compute_sums(Positions(LENGTH), model, batch, KEY)["loss"]
    assert loss == pytest.approx(float(by_hand(model)), rel=1e-5)


def test_classification_denoising_drops_by_another_key_than_it_masks():
    """Its class comes from the masked input, with the dropout of this key."""
    model = DenoisingClassifier(
        encoder_config(VOCAB + 1), num_classes=CLASSES, rngs=nnx.Rngs(0)
    )
    objective = ClassificationDenoising(vocab_size=VOCAB, mask_token=VOCAB)
    batch = take(make_split(0, 8), range(8))

    @nnx.jit
    def by_hand(model):
        masked, padding_mask = objective.mask_batch(batch, KEY)
        logits = model(masked.inputs, padding_mask, fold_in(KEY, 2**31))
        is_label = jax.nn.one_hot(batch.labels, CLASSES)
        return -(jax.nn.log_softmax(logits) * is_label).sum()

    loss, weight = compute_sums(objective, model, batch, KEY)["classification_loss"]
    assert loss == pytest.approx(float(by_hand(model)), rel=1e-5)
    assert weight == 8


def add_noise(tokens, key):
    return (tokens + jax.random.randint(key, tokens.shape, 0, VOCAB)) % VOCAB


def test_a_step_augments_each_example_by_a_key_of_its_own(optimizer):
    """The model drops by the key of the step, as without augmentation."""
    split = make_split(0, 8)
    augment = functools.partial(augment_batch, [add_noise, add_noise])
    key = fold_in(fold_in(jax.random.key(3), 1), 5)
    augmentation_key = fold_in(key, 2**31 + 1)
    batch = take(split, range(8))
    inputs = []
    for example, tokens in enumerate(batch.inputs):
        example_key = fold_in(augmentation_key, example)
        tokens = add_noise(tokens, fold_in(example_key, 0))
        inputs.append(add_noise(tokens, fold_in(example_key, 1)))

    loss = loss_of_a_step(optimizer, 3, 5, split, parts=1, augment=augment)

    model = BagOfTokens(nnx.Rngs(3))
    augmented = batch._replace(inputs=jnp.stack(inputs))
    sums = compute_sums(Classification(), model, augmented, key)
    assert loss == pytest.approx(sums["loss"][0], rel=1e-5)


MASKED = MaskedTokens(vocab_size=VOCAB, mask_token=VOCAB, mlm_probability=0.4)


@pytest.fixture(scope="module")
def model():
    return MaskedLanguageModel(encoder_config(VOCAB + 1), rngs=nnx.Rngs(0))


@pytest.mark.parametrize("is_training", [True, False])
def test_masked_tokens_draws_masks_by_example_and_dropout_by_another_key(
    model, is_training
):
    """An evaluation draws its masks by key 0, and has no dropout."""
    batch = take(make_split(0, 20), [4, 1, 19])
    key = KEY if is_training else jax.random.key(0)
    dropout_key = fold_in(key, 2**31) if is_training else None

    @jax.jit
    def by_hand(batch):
        keys = jax.vmap(fold_in, (None, 0))(key, batch.example_ids)
        masked = MASKED.mask_tokens(batch.inputs, batch.mask, keys)
        x, _ = model.encoder(masked.inputs, batch.mask, dropout_key)
        x = jnp.take_along_axis(x, masked.positions[:, :, None], axis=1)
        is_target = jax.nn.one_hot(masked.targets, VOCAB + 1)
        losses = -(jax.nn.log_softmax(model.decode(x)) * is_target).sum(-1)
        return (losses * masked.weights).sum(), masked.weights.sum()

    sums = compute_sums(MASKED, model, batch, KEY if is_training else None)
    expected_loss, expected_weight = by_hand(batch)
    assert sums["loss"][0] == pytest.approx(float(expected_loss), rel=1e-5)
    assert sums["loss"][1] == pytest.approx(float(expected_weight), rel=1e-5)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_run_has_the_weights_and_the_order_of_its_seed(
    optimizer, splits, tmp_path, seed
):
    """An epoch has twelve steps."""
    config = TrainConfig(
        seed=seed,
        batch_size=8,
        num_steps=20,
        eval_every=20,
        log_every=5,
        checkpoint_every=20,
    )
    programs = Programs(BagOfTokens, Classification(), optimizer)
    seeds = set()
    examples = []

    def train_chunk(state, chunk):
        seeds.add(int(state.seed))
        places = np.asarray(chunk.places)[: chunk.num_batches]
        examples.extend(np.asarray(chunk.rows.example_ids)[places])
        return programs.train_chunk(state, chunk)

    train_chunk.lower = programs.train_chunk.lower
    run = open_run(programs, config, splits, tmp_path)
    run.programs = with_functions(programs, train_chunk=train_chunk)

    fresh_params = split_weights(BagOfTokens(nnx.Rngs(seed)))[1].params
    close = jax.tree.map(np.allclose, run.state.weights.params, fresh_params)
    assert all(jax.tree.leaves(close))

    train(run)
    assert seeds == {seed}
    num_examples = len(splits["train"].labels)
    expected = train_example_ids(seed, 0, 20, num_examples, 8)
    np.testing.assert_array_equal(examples, expected)
