"""The gradient of a batch in parts is that of the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nystromformer.attention import ATTENTIONS
from nystromformer.encoder import EncoderConfig
from nystromformer.heads import PairClassifier, SequenceClassifier
from nystromformer.training.data import HostSplit
from nystromformer.training.gradients import batch_gradient, bucket_lengths
from nystromformer.training.metrics import Totals
from nystromformer.training.objective import Classification
from nystromformer.training.step import split_weights
from tests.attention import cases
from tests.tolerance import TOLERANCE, relative_error
from tests.training.conftest import CLASSES, VOCAB, make_split

LENGTH = 32
SIZES = {"vocab_size": VOCAB, "max_length": LENGTH, "num_layers": 1}
SIZES |= {"num_heads": 2, "model_dim": 8, "mlp_dim": 8, "dropout_rate": 0.0}
# Few iterations: they are unrolled, and compiling takes most of the time.
OPTIONS = cases.OPTIONS | {"nystrom": {"num_landmarks": 7, "num_pinv_iters": 2}}


def classifier(name, make=SequenceClassifier, **changes):
    options = {"attention": name, "attention_options": OPTIONS.get(name, {})}
    config = EncoderConfig(**{**SIZES, **options, **changes})
    return make(config, num_classes=CLASSES, rngs=nnx.Rngs(0))


@pytest.fixture
def data():
    """Eight examples, one of them as long as the first of four lengths, one of all."""
    split = make_split(0, 8, LENGTH)
    split.inputs[:] = np.random.default_rng(1).integers(1, VOCAB, split.inputs.shape)
    split.lengths[:] = [31, 8, 1, 9, 32, 3, 17, 8]
    return HostSplit.from_split(split).put()


def program(model, **batching):
    """The gradient of this model's loss, and its first arguments."""
    graphdef, weights = split_weights(model)

    def forward(params, variables, batch, key):
        model = nnx.merge(graphdef, params, variables, copy=True)
        sums = Classification()(model, batch, key)
        return Totals(sums, batch.weights.sum()), variables

    return jax.jit(functools.partial(batch_gradient, forward, **batching)), weights


def gradient_of(model, data, indices=range(8), **batching):
    run, weights = program(model, **batching)
    return run(*weights, data, jnp.array(indices), jax.random.key(0))


def check_equal(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    found, expected = (ravel_pytree(x._replace(variables=()))[0] for x in (one, other))
    assert relative_error(found, expected) <= TOLERANCE["float32"]


def by_hand(forward, data, variables=(), parts=4, buckets=1):
    """The gradient of a forward pass that has one parameter, 1."""
    where = forward, jnp.ones(()), variables, data, jnp.arange(8), jax.random.key(0)
    return batch_gradient(*where, grad_accum_steps=parts, length_buckets=buckets)


def test_bucket_lengths_are_even_steps_that_end_at_the_longest():
    assert bucket_lengths(2000, 4) == (500, 1000, 1500, 2000)
    assert bucket_lengths(10, 4) == (3, 5, 8, 10)
    assert bucket_lengths(2, 8) == (1, 2)


SLOW = [(x, 2, 2) for x in ATTENTIONS if x not in ("nystrom", "linear")]
PARTS = [("linear", 1, 4), ("linear", 4, 1), ("nystrom", 8, 2)]
PARTS += [pytest.param(*x, marks=pytest.mark.slow) for x in SLOW]


@pytest.mark.parametrize(("name", "parts", "buckets"), PARTS)
def test_batch_gradient_in_parts_adds_up_to_the_whole(data, name, parts, buckets):
    model = classifier(name)
    found = gradient_of(model, data, grad_accum_steps=parts, length_buckets=buckets)
    check_equal(found, gradient_of(model, data))
    assert float(found.totals.examples) == 8


def test_batch_gradient_gives_a_pair_the_length_of_its_longer_text(data):
    pairs = jnp.arange(8).reshape(4, 2)
    pairs = data._replace(labels=data.labels[:4], pairs=pairs)
    model = classifier("linear", make=PairClassifier)
    found = gradient_of(model, pairs, range(4), grad_accum_steps=4, length_buckets=2)
    check_equal(found, gradient_of(model, pairs, range(4)))


@pytest.mark.parametrize("parts", [1, 4])
def test_batch_gradient_divides_by_the_weight_and_passes_variables_on(data, parts):
    def forward(params, variables, batch, key):
        tokens = batch.mask.sum().astype(jnp.float32)
        sums = {"loss": (3 * params * tokens, tokens)}
        return Totals(sums, batch.weights.sum()), variables + 1

    found = by_hand(forward, data, jnp.zeros(()), parts)
    assert (found.params, found.variables) == (3, parts)


def test_batch_gradient_draws_dropout_for_each_part(data):
    model = classifier("identity", dropout_rate=0.5)
    one = gradient_of(model, data, [0], length_buckets=2)
    same = gradient_of(model, data, [0, 0], grad_accum_steps=2, length_buckets=2)
    assert same.totals.means()["loss"] != pytest.approx(one.totals.means()["loss"])


def test_batch_gradient_sorts_parts_by_length_and_truncates_them(data):
    seen = []

    def forward(params, variables, batch, key):
        jax.debug.callback(lambda mask: seen.append(mask), batch.mask)
        weight = batch.weights.sum()
        return Totals({"loss": (params * weight, weight)}, weight), ()

    by_hand(forward, data, buckets=4)
    jax.effects_barrier()
    found = sorted((mask.shape[1], sorted(mask.sum(1).tolist())) for mask in seen)
    assert found == [(8, [1, 3]), (8, [8, 8]), (24, [9, 17]), (32, [31, 32])]


def test_batch_gradient_in_parts_takes_less_memory(data):
    """Of a batch whose activations are most of what a step holds."""
    held = []
    for parts in (1, 8):
        run, weights = program(classifier("identity"), grad_accum_steps=parts)
        where = *weights, data, jnp.zeros(512, jnp.int32), jax.random.key(0)
        held.append(run.lower(*where).compile().memory_analysis().temp_size_in_bytes)
    assert held[1] < held[0] / 4


@pytest.mark.parametrize("name", ATTENTIONS)
def test_batch_gradient_can_be_lowered_for_accelerators(data, name):
    """Which does not say that it runs there."""
    run, weights = program(classifier(name, dtype=jnp.dtype("bfloat16")))
    traced = run.trace(*weights, data, jnp.arange(8), jax.random.key(0))
    lowered = traced.lower(lowering_platforms=("cuda", "tpu"))
    assert "stablehlo" in lowered.as_text()
