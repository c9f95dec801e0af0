"""Dropout by its formula: where it sits, and which part of a key each place draws from.

Every expected value is written with the parts of the model, without dropout, and with
`ops.dropout`, whose own tests are in ops_test.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import factors, ops
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.encoder import Encoder
from nystromformer.heads import (
    DenoisingClassifier,
    DenoisingPairClassifier,
    FirstTokenClassifier,
    MaskedLanguageModel,
    MaskedOrderModel,
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from tests.encoder_cases import INPUTS, MASK, B, D, L, V, call, encoder_config
from tests.tolerance import TOLERANCE, relative_error

# Compiled: one operation at a time they would take ten times as long.
dropout = jax.jit(ops.dropout, static_argnums=1)
softmax_matrix = jax.jit(factors.softmax_matrix)

KEY = jax.random.key(1)
RATE = 0.4
# Exact attention drops weights of its own; without attention a head compiles faster.
SOFTMAX = {"attention": "softmax", "attention_options": {"dropout_rate": 0.2}}
IDENTITY = {"attention": "identity"}
X = jax.random.normal(jax.random.key(2), (B, L, D))


def check(actual, expected):
    assert relative_error(actual, expected) <= TOLERANCE["same"]


def make_encoder(**options):
    config = encoder_config(**SOFTMAX, dropout_rate=RATE, **options)
    return Encoder(config, rngs=nnx.Rngs(0))


def make_model(model, **arguments):
    config = encoder_config(**IDENTITY, dropout_rate=RATE)
    return model(config, **arguments, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_mlp_drops_after_the_gelu_with_norm_pre_alone(norm):
    """As the LRA's models and BERT's do."""
    mlp = make_encoder(norm=norm).blocks[0].mlp
    hidden = jax.nn.gelu(mlp.expand(X), approximate=False)
    dropped = dropout(hidden, RATE if norm == "pre" else 0.0, KEY)
    check(call(mlp, X, KEY), mlp.contract(dropped))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_drops_what_it_adds_and_never_the_residual(norm):
    """x + dropout(f(LN(x))), or LN(x + dropout(f(x))), by the block's four keys."""
    block = make_encoder(norm=norm).blocks[0]
    block.mlp_norm.scale[...] *= 2  # no other norm's
    of_weights, of_attended, of_hidden, of_mlp = jax.random.split(KEY, 4)
    halves = (
        (block.attention_norm, lambda x: call(block.attention, x, MASK, of_weights)),
        (block.mlp_norm, lambda x: call(block.mlp, x, of_hidden)),
    )
    expected = X
    for (ln, function), key in zip(halves, (of_attended, of_mlp), strict=True):
        if norm == "pre":
            expected = expected + dropout(function(ln(expected)), RATE, key)
        else:
            expected = ln(expected + dropout(function(expected), RATE, key))
    check(call(block, X, MASK, KEY), expected)


def test_encoder_drops_its_embeddings_and_each_block_by_a_key_of_its_own():
    """Embeddings with their LayerNorm and [CLS]; nothing after the last LayerNorm."""
    encoder = make_encoder(embedding_norm=True, cls_token=True, num_layers=3)
    encoder.embedding_norm.scale[...] *= 2  # not that of the last norm
    of_embeddings, *of_blocks = jax.random.split(KEY, 1 + 3)
    x = encoder.embedding(INPUTS) + encoder.positions[...][None]
    cls = jnp.broadcast_to(encoder.cls[...], (B, 1, D))
    x = encoder.embedding_norm(jnp.concatenate([cls, x], axis=1))
    x = dropout(x, RATE, of_embeddings)
    mask = np.pad(MASK, ((0, 0), (1, 0)), constant_values=True)
    for block, key in zip(encoder.blocks, of_blocks, strict=True):
        x = call(block, x, mask, key)
    found, _ = call(encoder, INPUTS, MASK, KEY)
    check(found[mask], encoder.norm(x)[mask])


def test_softmax_attention_drops_its_weights_by_a_key_for_each_head():
    rate, num_heads, head_dim = 0.3, 2, 5
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": L}
    attention = SoftmaxAttention(**sizes, rngs=nnx.Rngs(0), dropout_rate=rate)
    query, key, value = jax.random.normal(KEY, (3, B, L, num_heads, head_dim))
    options = {"dropout_rng": KEY, "deterministic": False}
    found = attention(query, key, value, **options, broadcast_dropout=False)
    keys = jax.random.split(KEY, (B, num_heads))
    for b, n in np.ndindex(B, num_heads):
        weights = softmax_matrix(query[b, :, n], key[b, :, n])
        expected = dropout(weights, rate, keys[b, n]) @ value[b, :, n]
        check(found[b, :, n], expected)
    exact = attention(query, key, value, deterministic=True)
    check(exact[0, :, 0], softmax_matrix(query[0, :, 0], key[0, :, 0]) @ value[0, :, 0])


@pytest.mark.parametrize(
    "model",
    [
        SequenceClassifier,
        PairClassifier,
        TokenClassifier,
        DenoisingClassifier,
        DenoisingPairClassifier,
    ],
)
def test_classifiers_drop_in_their_encoder_alone(model):
    """The encoder gets the key; both texts of a pair are rows of one batch."""
    options = {} if model is TokenClassifier else {"pooling": "max"}
    classifier = make_model(model, num_classes=7, **options)
    inputs, mask = INPUTS, MASK
    if classifier.num_inputs == 2:
        inputs, mask = (np.stack([x, x], axis=1) for x in (inputs, mask))
    rows = inputs.reshape(-1, L), mask.reshape(-1, L)
    x, _ = call(classifier.encoder, *rows, KEY)
    expected = classifier.read(x, rows[1], None)
    check(call(classifier, inputs, mask, KEY), expected)
    assert relative_error(call(classifier, inputs, mask), expected) > 0.01


@pytest.mark.parametrize("model", [MaskedLanguageModel, MaskedOrderModel])
def test_masked_models_drop_in_their_encoder_alone(model):
    masked = make_model(model)
    x, _ = call(masked.encoder, INPUTS, MASK, KEY)
    check(call(masked, INPUTS, MASK, KEY), masked.decode(x))


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_first_token_classifier_drops_before_both_of_its_layers(activation):
    """By two keys that the encoder does not draw from."""
    model = make_model(FirstTokenClassifier, num_classes=V, activation=activation)
    before_pooler, before_out = jax.random.split(jax.random.fold_in(KEY, 2**31), 2)
    x, _ = call(model.encoder, INPUTS, MASK, KEY)
    hidden = model.pooler(dropout(x[:, 0], RATE, before_pooler))
    functions = {"tanh": jnp.tanh, "gelu": lambda x: jax.nn.gelu(x, approximate=False)}
    hidden = functions[activation](hidden)
    expected = model.out(dropout(hidden, RATE, before_out))
    check(call(model, INPUTS, MASK, KEY), expected)
