"""The gradient of a batch in parts is that of the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.flatten_util import ravel_pytree

from nystromformer.attention import ATTENTIONS
from nystromformer.classifiers import PairClassifier, SequenceClassifier
from nystromformer.encoder import EncoderConfig
from nystromformer.training.data import HostSplit
from nystromformer.training.objective import Classification, Totals
from nystromformer.training.step import batch_gradient, split_weights
from tests.attention import cases
from tests.tolerance import TOLERANCE, relative_error
from tests.training.conftest import CLASSES, VOCAB, make_split

LENGTH = 32
# Iterations are unrolled, and compiling takes most of the time: there are few.
OPTIONS = cases.OPTIONS | {"nystrom": {"num_landmarks": 7, "num_pinv_iters": 2}}


def classifier(name, head=SequenceClassifier, *, dropout_rate=0.0, dtype=jnp.float32):
    config = EncoderConfig(
        vocab_size=VOCAB,
        max_length=LENGTH,
        num_layers=1,
        num_heads=2,
        model_dim=8,
        mlp_dim=8,
        attention=name,
        attention_options=OPTIONS.get(name, {}),
        dropout_rate=dropout_rate,
        dtype=dtype,
    )
    return head(config, num_classes=CLASSES, rngs=nnx.Rngs(0))


@pytest.fixture
def data():
    """Eight examples of many lengths.

    With four buckets, two examples have exactly the first bucket's length and one the
    last's.
    """
    split = make_split(0, 8, LENGTH)
    split.inputs[:] = np.random.default_rng(1).integers(1, VOCAB, split.inputs.shape)
    split.lengths[:] = [31, 8, 1, 9, 32, 3, 17, 8]
    return HostSplit.from_split(split).put()


def compile_gradient(model, **batching):
    """The gradient of this model's loss, as a function, and its first arguments."""
    graphdef, weights = split_weights(model)

    def forward(params, variables, batch, key):
        model = nnx.merge(graphdef, params, variables, copy=True)
        sums = Classification()(model, batch, key)
        return Totals(sums, batch.weights.sum()), variables

    return jax.jit(functools.partial(batch_gradient, forward, **batching)), weights


def gradient_of(model, data, places=range(8), **batching):
    gradient, weights = compile_gradient(model, **batching)
    return gradient(*weights, data, jnp.array(places), jax.random.key(0))


def numbers(gradient):
    """All numbers of a gradient in one vector, without the variables."""
    return ravel_pytree(gradient._replace(variables=()))[0]


def check_equal(gradient, expected):
    assert jax.tree.structure(gradient) == jax.tree.structure(expected)
    error = relative_error(numbers(gradient), numbers(expected))
    assert error <= TOLERANCE["float32"]


def gradient_of_one_parameter(forward, data, variables=(), parts=4, buckets=1):
    """The gradient of a forward pass whose only parameter is 1."""
    return batch_gradient(
        forward,
        params=jnp.ones(()),
        variables=variables,
        rows=data,
        places=jnp.arange(8),
        key=jax.random.key(0),
        grad_accum_steps=parts,
        length_buckets=buckets,
    )


PARTS = [("identity", 1, 2), ("identity", 4, 1), ("nystrom", 8, 4)]
for attention in ATTENTIONS:
    if attention not in ("identity", "nystrom"):
        PARTS.append(pytest.param(attention, 2, 2, marks=pytest.mark.slow))


@pytest.mark.parametrize(("name", "parts", "buckets"), PARTS)
def test_batch_gradient_in_parts_adds_up_to_the_whole(data, name, parts, buckets):
    model = classifier(name)
    gradient = gradient_of(model, data, grad_accum_steps=parts, length_buckets=buckets)
    check_equal(gradient, gradient_of(model, data))
    assert float(gradient.totals.examples) == 8


def test_batch_gradient_gives_a_pair_the_length_of_its_longer_text(data):
    rows = jnp.arange(8).reshape(4, 2)
    pairs = data._replace(labels=data.labels[:4], pairs=rows)
    model = classifier("identity", PairClassifier)
    gradient = gradient_of(model, pairs, range(4), grad_accum_steps=4, length_buckets=4)
    check_equal(gradient, gradient_of(model, pairs, range(4)))


@pytest.mark.parametrize("parts", [1, 4])
def test_batch_gradient_divides_by_the_weight_and_passes_variables_on(data, parts):
    def forward(params, variables, batch, key):
        tokens = batch.mask.sum().astype(jnp.float32)
        sums = {"loss": (3 * params * tokens, tokens)}
        return Totals(sums, batch.weights.sum()), variables + 1

    gradient = gradient_of_one_parameter(forward, data, jnp.zeros(()), parts)
    assert gradient.params == 3
    assert gradient.variables == parts


@pytest.mark.parametrize("parts", [1, 4])
def test_batch_gradient_of_a_batch_in_which_nothing_has_weight_is_zero(data, parts):
    """As of texts in which no token is masked; 0/0 would stop the run."""

    def forward(params, variables, batch, key):
        sums = {"loss": (3 * params * jnp.zeros(()), jnp.zeros(()))}
        return Totals(sums, batch.weights.sum()), variables

    assert gradient_of_one_parameter(forward, data, parts=parts).params == 0


def test_batch_gradient_sorts_parts_by_length_and_truncates_them(data):
    masks = []

    def forward(params, variables, batch, key):
        jax.debug.callback(masks.append, batch.mask)
        weight = batch.weights.sum()
        return Totals({"loss": (params * weight, weight)}, weight), ()

    gradient_of_one_parameter(forward, data, buckets=4)

    jax.effects_barrier()
    parts = [(mask.shape[1], sorted(mask.sum(1).tolist())) for mask in masks]
    assert sorted(parts) == [
        (8, [1, 3]),
        (8, [8, 8]),
        (24, [9, 17]),
        (32, [31, 32]),
    ]


def test_batch_gradient_does_not_cut_examples_that_have_no_padding(data):
    """A flip needs the whole picture, also where it is only compiled."""
    lengths = set()

    def forward(params, variables, batch, key):
        lengths.add(batch.inputs.shape[1])
        weight = batch.weights.sum()
        return Totals({"loss": (params * weight, weight)}, weight), ()

    gradient_of_one_parameter(forward, data._replace(lengths=None), buckets=4)
    assert lengths == {LENGTH}


def bytes_of_temporaries(data, parts):
    """The memory of a step on 512 examples, whose activations are most of it."""
    gradient, weights = compile_gradient(classifier("identity"), grad_accum_steps=parts)
    places = jnp.zeros(512, jnp.int32)
    compiled = gradient.lower(*weights, data, places, jax.random.key(0)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_batch_gradient_in_parts_takes_less_memory(data):
    assert bytes_of_temporaries(data, 8) < bytes_of_temporaries(data, 1) / 4


@pytest.mark.parametrize("name", ATTENTIONS)
def test_batch_gradient_can_be_lowered_for_accelerators(data, name):
    """The test does not say that it runs there."""
    model = classifier(name, dtype=jnp.dtype("bfloat16"))
    gradient, weights = compile_gradient(model)
    traced = gradient.trace(*weights, data, jnp.arange(8), jax.random.key(0))
    lowered = traced.lower(lowering_platforms=("cuda", "tpu"))
    assert "stablehlo" in lowered.as_text()
