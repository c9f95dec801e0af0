"""The seed of a run reaches its weights, its order, its dropout and its masks.

The keys are written out: fold_in(key(seed), 1) for dropout, in it the step, in it the
part of the batch or the example.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.config import TrainConfig
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import (
    DenoisingClassifier,
    MaskedLanguageModel,
    TokenClassifier,
)
from nystromformer.training.augmentation import Augmented
from nystromformer.training.compiled import jit_programs
from nystromformer.training.data import Batch, Chunk, HostSplit, train_indices
from nystromformer.training.denoising import ClassificationDenoising
from nystromformer.training.loop import Trainer
from nystromformer.training.masked import MaskedTokens
from nystromformer.training.objective import Classification
from nystromformer.training.positions import Positions
from nystromformer.training.step import split_weights
from tests.training.conftest import CLASSES, LENGTH, VOCAB, BagOfTokens, make_split

fold_in = jax.random.fold_in
ROWS = np.arange(8)
KEY = jax.random.key(9)


def measured(objective, model, batch, key=None):
    """The sums of the objective, compiled."""

    @nnx.jit
    def compute(model, batch, key):
        return objective(model, batch, key)

    sums = compute(model, batch, key)
    return {name: (float(x), float(weight)) for name, (x, weight) in sums.items()}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_draws_dropout_by_seed_step_and_part(optimizer, parts):
    """The loss of the step is that of the model with these keys."""
    seed, step = 3, 5
    batching = {"grad_accum_steps": parts}
    programs = jit_programs(BagOfTokens, Classification(), optimizer, **batching)
    state = programs.init(np.uint32(seed))._replace(step=jnp.int32(step))
    split = make_split(0, 8)
    data = HostSplit.from_split(split).put()
    chunk = Chunk(data, jnp.arange(8)[None], 1)
    after, _ = programs.train_chunk(state, chunk)

    key = fold_in(fold_in(jax.random.key(seed), 1), step)
    rows, keys = [np.arange(8)], [key]
    if parts == 2:
        rows = np.split(np.argsort(split.lengths, kind="stable"), 2)
        keys = [fold_in(key, 0), fold_in(key, 1)]
    model, loss = BagOfTokens(nnx.Rngs(seed)), 0.0
    for chosen, of_part in zip(rows, keys, strict=True):
        batch = data.take(jnp.asarray(chosen), jnp.ones(len(chosen)))
        loss += measured(Classification(), model, batch, of_part)["loss"][0]
    assert float(after.totals.sums["loss"][0]) == pytest.approx(loss, rel=1e-5)


def test_positions_drops_by_its_key():
    sizes = {"vocab_size": VOCAB, "max_length": LENGTH, "num_layers": 1}
    config = EncoderConfig(**sizes, attention="identity", dropout_rate=0.5)
    model = TokenClassifier(config, num_classes=CLASSES, rngs=nnx.Rngs(0))
    batch = (
        HostSplit.from_split(make_split(0, 8)).put().take(jnp.arange(8), jnp.ones(8))
    )
    labels = jnp.where(jnp.arange(LENGTH) % 2 == 0, 1, -1)
    labels = jnp.broadcast_to(labels, (8, LENGTH))

    @nnx.jit
    def by_hand(model):
        losses = -jax.nn.log_softmax(model(batch.inputs, batch.mask, KEY))[:, :, 1]
        return jnp.where(labels == 1, losses, 0).sum()

    found = measured(Positions(LENGTH), model, batch._replace(labels=labels), KEY)
    assert found["loss"][0] == pytest.approx(float(by_hand(model)), rel=1e-5)


def test_classification_denoising_drops_by_another_key_than_it_hides():
    """Its class comes from the corrupted input, with the dropout of this key."""
    sizes = {"vocab_size": VOCAB + 1, "max_length": LENGTH, "num_layers": 1}
    config = EncoderConfig(**sizes, attention="identity", dropout_rate=0.5)
    options = {"num_classes": CLASSES, "rngs": nnx.Rngs(0)}
    model = DenoisingClassifier(config, **options)
    objective = ClassificationDenoising(vocab_size=VOCAB, mask_token=VOCAB)
    batch = (
        HostSplit.from_split(make_split(0, 8)).put().take(jnp.arange(8), jnp.ones(8))
    )

    @nnx.jit
    def by_hand(model):
        masked, mask = objective.hide(batch, KEY)
        logits = model(masked.inputs, mask, fold_in(KEY, 2**31))
        chosen = jax.nn.one_hot(batch.labels, CLASSES)
        return -(jax.nn.log_softmax(logits) * chosen).sum()

    found = measured(objective, model, batch, KEY)["classification_loss"]
    assert found == pytest.approx((float(by_hand(model)), 8.0), rel=1e-5)


def test_augmented_draws_for_each_example_by_a_key_of_its_own():
    """And hands on the key of the step, by which the model drops."""

    def move(tokens, key):
        return tokens + jax.random.randint(key, tokens.shape, 0, 1000)

    def note(model, batch, key):
        seen.append((batch.inputs, key))
        return {}

    seen, objective = [], Classification()
    augmented = Augmented(objective, [move, move])
    augmented.objective = note
    batch = (
        HostSplit.from_split(make_split(0, 8))
        .put()
        .take(jnp.array([5, 2]), jnp.ones(2))
    )
    augmented(None, batch, KEY)
    augmented(None, batch, None)
    (inputs, key), (as_they_are, no_key) = seen
    assert (key, no_key) == (KEY, None)
    np.testing.assert_array_equal(as_they_are, batch.inputs)
    of_augmentation = fold_in(KEY, 2**31 + 1)
    for row, tokens, example in zip(inputs, batch.inputs, (5, 2), strict=True):
        for number in (0, 1):
            of_example = fold_in(of_augmentation, example)
            tokens = move(tokens, fold_in(of_example, number))
        np.testing.assert_array_equal(row, tokens)


MASKED = MaskedTokens(vocab_size=VOCAB, mask_token=VOCAB, mlm_probability=0.4)


@pytest.fixture(scope="module")
def model():
    sizes = {"vocab_size": VOCAB + 1, "max_length": LENGTH, "num_layers": 1}
    config = EncoderConfig(**sizes, attention="identity", dropout_rate=0.5)
    return MaskedLanguageModel(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("is_training", [True, False])
def test_masked_tokens_draws_masks_by_example_and_dropout_by_another_key(
    model, is_training
):
    """An evaluation draws its masks by key 0, and has no dropout."""
    data = HostSplit.from_split(make_split(0, 20)).put()
    batch = data.take(jnp.array([4, 1, 19]), jnp.ones(3))
    key = KEY if is_training else jax.random.key(0)

    @jax.jit
    def by_hand(batch):
        keys = jax.vmap(fold_in, (None, 0))(key, batch.indices)
        masked = MASKED.mask_tokens(batch.inputs, batch.mask, keys)
        of_dropout = fold_in(key, 2**31) if is_training else None
        x, _ = model.encoder(masked.inputs, batch.mask, of_dropout)
        x = jnp.take_along_axis(x, masked.positions[:, :, None], axis=1)
        chosen = jax.nn.one_hot(masked.targets, VOCAB + 1)
        losses = -(jax.nn.log_softmax(model.decode(x)) * chosen).sum(-1)
        return (losses * masked.weights).sum(), masked.weights.sum()

    found = measured(MASKED, model, batch, KEY if is_training else None)
    assert found["loss"] == pytest.approx(tuple(map(float, by_hand(batch))), rel=1e-5)


def test_masked_tokens_of_a_filler_pair_weigh_nothing(model):
    """Both of its texts, and none of the real pair's."""
    inputs = jnp.int32(make_split(0, 4).inputs).reshape(2, 2, LENGTH)
    labels, indices = jnp.zeros(2, int), jnp.arange(2)
    for real, weights in enumerate(([1.0, 0.0], [0.0, 1.0])):
        pairs = Batch(inputs, None, labels, jnp.array(weights), indices)
        one = slice(real, real + 1)
        alone = Batch(inputs[one], None, labels[one], jnp.ones(1), indices[one])
        found, expected = (measured(MASKED, model, x) for x in (pairs, alone))
        assert expected["loss"][1] > 0
        for name, sums in expected.items():
            assert found[name] == pytest.approx(sums, rel=1e-5)


def test_a_run_evaluates_in_batches_as_small_and_short_as_its_parts(
    optimizer, splits, tmp_path
):
    """So that evaluation takes no more memory than training."""
    batching = {"grad_accum_steps": 4, "length_buckets": 7}
    sizes = {"batch_size": 8, "num_steps": 2, "eval_every": 1, "checkpoint_every": 2}
    programs = jit_programs(BagOfTokens, Classification(), optimizer, **batching)
    seen, eval_chunk = set(), programs.eval_chunk

    def watched(weights, chunk, *others, length):
        seen.add((chunk.indices.shape[1], length))
        return eval_chunk(weights, chunk, *others, length=length)

    programs = programs._replace(eval_chunk=watched)
    Trainer(programs, TrainConfig(**sizes, **batching), splits, tmp_path).fit()
    assert {batch for batch, _ in seen} == {8 // 4}
    assert {length for _, length in seen} > {2, LENGTH}


@pytest.mark.parametrize("seed", [0, 7])
def test_a_run_has_the_weights_and_the_order_of_its_seed(
    optimizer, splits, tmp_path, seed
):
    sizes = {"batch_size": 8, "num_steps": 20, "eval_every": 20, "log_every": 5}
    schedule = TrainConfig(seed=seed, checkpoint_every=20, **sizes)
    programs = jit_programs(BagOfTokens, Classification(), optimizer)
    examples, seeds, train_chunk = [], set(), programs.train_chunk

    def watched(state, chunk):
        seeds.add(int(state.seed))
        used = np.asarray(chunk.indices)[: chunk.num_batches]
        examples.extend(np.asarray(chunk.rows.examples)[used])
        return train_chunk(state, chunk)

    run = Trainer(programs, schedule, splits, tmp_path)
    fresh = split_weights(BagOfTokens(nnx.Rngs(seed)))[1]
    close = jax.tree.map(np.allclose, run.state.weights.params, fresh.params)
    assert all(jax.tree.leaves(close))
    watched.lower = train_chunk.lower
    run.programs = programs._replace(train_chunk=watched)
    run.fit()
    num_examples = len(splits["train"].labels)  # 12 steps an epoch
    expected = train_indices(seed, 0, 20, num_examples, 8)
    np.testing.assert_array_equal(examples, expected)
    assert seeds == {seed}
