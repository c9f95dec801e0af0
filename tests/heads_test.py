"""Pooling, heads, and the model as a whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import EncoderConfig
from nystromformer.heads import (
    FirstTokenClassifier,
    MaskedLanguageModel,
    MaskedOrderModel,
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from tests.encoder_test import (
    INPUTS,
    LENGTHS,
    MASK,
    B,
    D,
    L,
    V,
    compiled,
    encoder_config,
)
from tests.paper import gelu
from tests.tolerance import TOLERANCE, relative_error

C = 7


def make(model=SequenceClassifier, pooling="mean", **options):
    config, rngs = encoder_config(**options), nnx.Rngs(0)
    return model(config, num_classes=C, pooling=pooling, rngs=rngs)


@functools.cache
def forward(**options):
    return compiled(make(**options))


def count(model):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))


POOLS = {
    "mean": lambda row: row.mean(0),
    "padded_mean": lambda row: row.sum(0) / L,
    "max": lambda row: row.max(0),
    "last": lambda row: row[-1],
    "cls_token": lambda row: row[0],
}


@pytest.mark.parametrize("pooling", POOLS)
def test_sequence_classifier_pools_valid_tokens(pooling):
    x = np.random.default_rng(1).normal(size=(B, L, D)).astype(np.float32) - 9
    model, of_row = make(pooling=pooling, attention="identity"), POOLS[pooling]
    dirty = np.where(MASK[:, :, None], x, np.nan)
    expected = [of_row(np.float64(row[:n])) for row, n in zip(x, LENGTHS, strict=True)]
    assert relative_error(model.pool(dirty, MASK), expected) <= TOLERANCE["same"]
    if pooling != "cls_token":
        assert not model.pool(x, np.zeros((B, L), bool)).any()
    whole = [of_row(np.float64(row)) for row in x]
    assert relative_error(model.pool(x, None), whole) <= TOLERANCE["same"]


@pytest.mark.parametrize("pooling", POOLS)
def test_sequence_classifier_promotes_no_dtype_unasked(pooling):
    graphdef, state = nnx.split(make(pooling=pooling, attention="identity"))

    def logits(state):
        return nnx.merge(graphdef, state)(jnp.asarray(INPUTS), MASK)

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(logits, state)  # or raises


def test_pair_classifier_rejects_inputs_and_masks_that_are_no_pairs():
    pairs, masks = (np.stack([x, x], axis=1) for x in (INPUTS, MASK))
    model = make(PairClassifier, attention="identity")
    assert model(pairs, masks).shape == (B, C)
    assert model(pairs[:0], masks[:0]).shape == (0, C)
    with pytest.raises(ValueError, match=r"inputs must be \[B, 2, L\].*got \(3, 31\)"):
        model(INPUTS)
    for mask in (MASK, masks[:, :, None]):
        with pytest.raises(ValueError, match=r"mask must be \[B, 2, L\], here \(3, 2"):
            model(pairs, mask)


@pytest.mark.parametrize("pooling", ["mean", "cls_token"])
def test_sequence_classifier_ignores_padding_and_batch(pooling):
    function = forward(pooling=pooling, cls_token=pooling == "cls_token")
    logits = function(INPUTS, MASK)
    assert logits.shape == (B, C)
    with pytest.raises(ValueError, match="cls_token=True needs pooling"):
        make(cls_token=True)
    other_tokens = np.where(MASK, INPUTS, (INPUTS + 5) % V)
    np.testing.assert_array_equal(function(other_tokens, MASK), logits)
    assert relative_error(function(other_tokens), function(INPUTS)) > 1e-3
    alone = function(INPUTS[1:2, :19])
    assert relative_error(logits[1:2], alone) <= TOLERANCE["float32"]


def test_pair_classifier_is_one_encoder_and_four_features():
    """Head on [x₀, x₁, x₀·x₁, x₀ − x₁], ReLU between two linear layers, in numpy."""
    model = make(PairClassifier)
    inputs = np.stack([INPUTS, (INPUTS * 3 + 1) % V], axis=1)
    mask = np.stack([MASK, MASK[::-1]], axis=1)
    pooled = []
    for i in (0, 1):
        x, _ = compiled(model.encoder)(inputs[:, i], mask[:, i])
        rows = zip(np.asarray(x, np.float64), mask[:, i], strict=True)
        pooled.append(np.array([row[valid].mean(0) for row, valid in rows]))
    x0, x1 = pooled
    features = np.concatenate([x0, x1, x0 * x1, x0 - x1], axis=1)
    head = [model.head.hidden, model.head.out]
    (w0, b0), (w1, b1) = ((np.asarray(m.kernel), np.asarray(m.bias)) for m in head)
    expected = np.maximum(features @ w0 + b0, 0) @ w1 + b1
    logits = forward(model=PairClassifier)(inputs, mask)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]
    swapped = forward(model=PairClassifier)(inputs[:, ::-1], mask[:, ::-1])
    assert relative_error(swapped, expected) > 1e-3


def test_sequence_classifier_in_bfloat16_has_float32_logits_and_gradients():
    graphdef, state = nnx.split(make(dtype=jnp.bfloat16))

    def loss(state):
        logits = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK))
        assert logits.dtype == jnp.float32
        return (logits * jnp.cos(jnp.arange(C))[None, :]).sum()

    for grad in jax.tree.leaves(jax.jit(jax.grad(loss))(state)):
        assert grad.dtype == jnp.float32
        assert np.isfinite(grad).all()
        assert np.asarray(grad).any()


def test_token_classifier_is_the_classifiers_head_on_each_vector():
    config = encoder_config(dtype=jnp.bfloat16)
    model = TokenClassifier(config, num_classes=C, rngs=nnx.Rngs(0))
    x = np.float64(compiled(model.encoder)(INPUTS, MASK)[0])
    hidden, out = model.head.hidden, model.head.out
    active = np.maximum(x @ np.float64(hidden.kernel) + np.float64(hidden.bias), 0)
    expected = active @ np.float64(out.kernel) + np.float64(out.bias)
    logits = compiled(model)(INPUTS, MASK)
    assert logits.dtype == jnp.float32
    assert logits.shape == (B, L, C)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("model", [SequenceClassifier, PairClassifier])
def test_classifiers_have_the_papers_parameters(model):
    """2 layers of width 64 and FFN 128, counted layer by layer."""

    def linear(fan_in, fan_out):
        return fan_in * fan_out + fan_out

    norm, attention = 2 * 64, 4 * linear(64, 64) + 35 * 2
    block = 2 * norm + attention + linear(64, 128) + linear(128, 64)
    head = linear(64 if model is SequenceClassifier else 4 * 64, 128) + linear(128, 10)
    expected = (16 + 2048) * 64 + 2 * block + norm + head
    options = {"conv_kernel_size": 35}
    config = EncoderConfig(vocab_size=16, max_length=2048, attention_options=options)
    made = nnx.eval_shape(lambda: model(config, num_classes=10, rngs=nnx.Rngs(0)))
    assert count(made) == expected


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_published_heads_are_their_formulas(kind):
    config = encoder_config(attention="identity", gelu=kind, dropout_rate=0.5)
    masked = MaskedLanguageModel(config, rngs=nnx.Rngs(0))
    masked.bias[...] = np.arange(V, dtype=np.float32)
    masked.transform.kernel[...] *= 5  # where both GELUs differ
    masked.norm.scale[...] *= 2  # not that of the encoder
    x, _ = compiled(masked.encoder)(INPUTS, MASK)
    x = np.asarray(x, np.float64)
    hidden = gelu(x @ np.asarray(masked.transform.kernel), kind)
    norm = hidden - hidden.mean(-1, keepdims=True)
    norm *= 2 / np.sqrt(hidden.var(-1, keepdims=True) + 1e-5)
    expected = norm @ np.asarray(masked.encoder.embedding.embedding).T + np.arange(V)
    error = relative_error(nnx.jit(masked)(INPUTS, MASK), expected)
    assert error <= TOLERANCE["float32"]

    model = FirstTokenClassifier(config, num_classes=C, rngs=nnx.Rngs(0))
    model.pooler.kernel[...] *= 5
    x = np.asarray(compiled(model.encoder)(INPUTS, MASK)[0], np.float64)
    pooled = x[:, 0] @ np.asarray(model.pooler.kernel)
    hidden = gelu(pooled, kind)
    expected = hidden @ np.asarray(model.out.kernel)
    logits = nnx.jit(model)(INPUTS, MASK)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]
    assert relative_error(nnx.jit(model)(INPUTS, MASK, jax.random.key(0)), logits) > 0.1

    options = {"num_classes": C, "activation": "tanh", "rngs": nnx.Rngs(0)}
    bert = FirstTokenClassifier(config, **options)
    both = MaskedOrderModel(config, rngs=nnx.Rngs(0))
    bert.pooler = both.pooler = model.pooler
    both.ordered.bias[...] = 1
    nnx.update(bert.encoder, nnx.state(model.encoder))
    hidden = np.tanh(pooled)
    expected = hidden @ np.asarray(bert.out.kernel)
    assert relative_error(nnx.jit(bert)(INPUTS, MASK), expected) <= TOLERANCE["float32"]
    expected = hidden @ np.asarray(both.ordered.kernel) + 1
    assert relative_error(both.order(x), expected) <= TOLERANCE["float32"]


def test_sequence_classifier_is_trained_in_linen_by_to_linen():
    model = make()
    layer = nnx.bridge.to_linen(SequenceClassifier, encoder_config(), num_classes=C)
    variables = jax.jit(layer.init)(jax.random.key(0), INPUTS)
    assert count(model) == sum(x.size for x in jax.tree.leaves(variables["params"]))

    @jax.jit
    @jax.grad
    def gradient(params):
        logits = layer.apply({**variables, "params": params}, INPUTS, MASK)
        return jnp.square(logits).sum()

    for leaf in jax.tree.leaves(gradient(variables["params"])):
        assert np.asarray(leaf).any()


def test_pair_classifier_takes_features():
    features = np.random.default_rng(2).normal(size=(B, 2, L, V)).astype(np.float32)
    pair = compiled(make(PairClassifier, vocab_size=None, input_dim=V))
    assert pair(features, np.stack([MASK, MASK], 1)).shape == (B, C)
    assert relative_error(pair(features[:, ::-1]), pair(features)) > 1e-3
