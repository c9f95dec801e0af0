"""Dropout draws as it should; models drop by its formula, each place by its own key.

Every expected output of a model is written with the parts of the model, without
dropout, and with `dropout`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import dropout as core
from nystromformer import factors
from nystromformer.attention.softmax import SoftmaxAttention
from nystromformer.classifiers import (
    FirstTokenClassifier,
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
)
from nystromformer.dropout import random_uint16
from nystromformer.encoder import Encoder
from nystromformer.token_models import (
    DenoisingClassifier,
    DenoisingPairClassifier,
    MaskedLanguageModel,
    MaskedOrderModel,
)
from tests.encoder_cases import INPUTS, MASK, B, D, L, V, call, encoder_config
from tests.tolerance import TOLERANCE, relative_error

# One operation at a time these would take ten times as long.
dropout = jax.jit(core.dropout, static_argnums=1)
softmax_matrix = jax.jit(factors.softmax_matrix)

KEY = jax.random.key(1)
RATE = 0.4
# Exact attention drops weights of its own; without attention a head compiles faster.
SOFTMAX = {"attention": "softmax", "attention_options": {"dropout_rate": 0.2}}
IDENTITY = {"attention": "identity", "num_layers": 1}
X = jax.random.normal(jax.random.key(2), (B, L, D))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_keeps_the_mean(rate):
    count = 10**5
    out = np.asarray(dropout(jnp.ones(count), rate, KEY))
    is_kept = out != 0
    standard_error = np.sqrt(rate * (1 - rate) / count)
    kept_share = 1 - rate
    assert abs(is_kept.mean() - kept_share) < 5 * standard_error
    np.testing.assert_allclose(out[is_kept], 1 / kept_share, rtol=2**-15)


def test_dropout_keeps_the_dtype():
    out = dropout(jnp.ones(3, jnp.bfloat16), 0.1, KEY)
    assert out.dtype == jnp.bfloat16


def test_dropout_of_rate_zero_or_without_a_key_is_the_identity():
    x = jnp.arange(5.0)
    assert core.dropout(x, 0.0, KEY) is x
    assert core.dropout(x, 0.3, None) is x


def test_dropout_of_nearly_all_leaves_finite_numbers():
    rate = 1 - 2.0**-18
    out = np.asarray(dropout(jnp.ones(2**20), rate, KEY))
    assert 0 < (out > 0).mean() < 2**-14
    assert out.max() == 2**16


NUM_WORDS = 2**16


@pytest.fixture(scope="module")
def random_bytes():
    """The four bytes of each random word, uint8 [4, NUM_WORDS, 4], of four keys."""
    draw = jax.jit(random_uint16, static_argnums=1)
    keys = jax.random.split(KEY, 4)
    shape = (64, NUM_WORDS // 32)
    halves = np.stack([draw(key, shape) for key in keys])
    bytes_of_keys = halves.reshape(4, -1).view(np.uint8)
    return bytes_of_keys.reshape(4, NUM_WORDS, 4)


@pytest.fixture(scope="module")
def random_signs(random_bytes):
    """The bits of each random word as −1 and 1, float32 [4, NUM_WORDS, 32]."""
    bits = np.unpackbits(random_bytes, axis=2)
    return 2 * bits.astype(np.float32) - 1


def test_bits_of_random_uint16_are_balanced(random_signs):
    assert abs(random_signs.mean(1)).max() < 5 / np.sqrt(NUM_WORDS)


@pytest.mark.parametrize("place", range(4))
def test_bytes_of_random_uint16_are_uniform(random_bytes, place):
    """χ² has 255 degrees of freedom."""
    values = random_bytes[:, :, place].ravel()
    expected = values.size / 256
    differences = np.bincount(values, minlength=256) - expected
    chi_squared = np.sum(differences**2) / expected
    assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("lag", [1, 2, 3, 32, 64, 128, 2048])
def test_neighbours_of_random_uint16_are_not_correlated(random_signs, lag):
    signs = random_signs[0]
    correlation = signs[lag:].T @ signs[:-lag] / NUM_WORDS
    assert abs(correlation).max() < 5 / np.sqrt(NUM_WORDS)


def test_random_uint16_of_keys_split_from_one_are_not_correlated(random_signs):
    signs = random_signs.reshape(4, -1)
    correlation = signs @ signs.T / signs.shape[1]
    assert abs(correlation - np.eye(4)).max() < 5 / np.sqrt(signs.shape[1])


def test_random_uint16_are_the_same_on_every_device(monkeypatch):
    def run_all(**branches):
        return [np.asarray(function()) for function in branches.values()]

    monkeypatch.setattr(jax.lax, "platform_dependent", run_all)
    np.testing.assert_array_equal(*random_uint16(KEY, (3, 5, 7)))


def check(actual, expected):
    assert relative_error(actual, expected) <= TOLERANCE["same"]


def make_encoder(**options):
    config = encoder_config(**SOFTMAX, dropout_rate=RATE, **options)
    return Encoder(config, rngs=nnx.Rngs(0))


def make_model(model, **arguments):
    config = encoder_config(**IDENTITY, dropout_rate=RATE)
    return model(config, **arguments, rngs=nnx.Rngs(0))


def exact_gelu(x):
    return jax.nn.gelu(x, approximate=False)


def test_mlp_drops_after_the_gelu_with_norm_pre():
    """So do the models of the LRA."""
    mlp = make_encoder(norm="pre").blocks[0].mlp
    hidden = exact_gelu(mlp.expand(X))
    check(call(mlp, X, KEY), mlp.contract(dropout(hidden, RATE, KEY)))


def test_mlp_drops_nothing_with_norm_post():
    """Nor does BERT."""
    mlp = make_encoder(norm="post").blocks[0].mlp
    hidden = exact_gelu(mlp.expand(X))
    check(call(mlp, X, KEY), mlp.contract(hidden))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_drops_what_it_adds_and_never_the_residual(norm):
    """The block has four keys, for the weights, the attention, the GELU and the MLP."""
    block = make_encoder(norm=norm).blocks[0]
    # The two norms of the block differ, so that it cannot exchange them.
    block.mlp_norm.scale[...] *= 2
    weights_key, attention_key, hidden_key, mlp_key = jax.random.split(KEY, 4)

    x = X
    if norm == "pre":
        added = call(block.attention, block.attention_norm(x), MASK, weights_key)
        x = x + dropout(added, RATE, attention_key)
        added = call(block.mlp, block.mlp_norm(x), hidden_key)
        x = x + dropout(added, RATE, mlp_key)
    else:
        added = call(block.attention, x, MASK, weights_key)
        x = block.attention_norm(x + dropout(added, RATE, attention_key))
        added = call(block.mlp, x, hidden_key)
        x = block.mlp_norm(x + dropout(added, RATE, mlp_key))

    check(call(block, X, MASK, KEY), x)


def test_encoder_drops_its_embeddings_and_each_block_by_a_key_of_its_own():
    """It drops embeddings with their LayerNorm and [CLS], and nothing at the end."""
    encoder = make_encoder(embedding_norm=True, cls_token=True, num_layers=2)
    # The first norm differs from the last, so that the encoder cannot exchange them.
    encoder.embedding_norm.scale[...] *= 2
    embedding_key, *block_keys = jax.random.split(KEY, 1 + 2)

    x = encoder.embedding(INPUTS) + encoder.positions[...][None]
    cls = jnp.broadcast_to(encoder.cls[...], (B, 1, D))
    x = encoder.embedding_norm(jnp.concatenate([cls, x], axis=1))
    x = dropout(x, RATE, embedding_key)
    mask = np.pad(MASK, ((0, 0), (1, 0)), constant_values=True)
    for block, key in zip(encoder.blocks, block_keys, strict=True):
        x = call(block, x, mask, key)

    out, _ = call(encoder, INPUTS, MASK, KEY)
    check(out[mask], encoder.norm(x)[mask])


NUM_HEADS = 2


@pytest.fixture
def softmax_attention():
    return SoftmaxAttention(
        num_heads=NUM_HEADS,
        head_dim=5,
        max_length=L,
        dropout_rate=0.3,
        rngs=nnx.Rngs(0),
    )


@pytest.fixture
def qkv():
    """Queries, keys and values."""
    return jax.random.normal(KEY, (3, B, L, NUM_HEADS, 5))


def test_softmax_attention_drops_its_weights_by_a_key_for_each_head(
    softmax_attention, qkv
):
    out = softmax_attention(
        *qkv, dropout_rng=KEY, deterministic=False, broadcast_dropout=False
    )
    dropout_keys = jax.random.split(KEY, (B, NUM_HEADS))
    for b, n in np.ndindex(B, NUM_HEADS):
        query, key, value = qkv[:, b, :, n]
        weights = dropout(softmax_matrix(query, key), 0.3, dropout_keys[b, n])
        check(out[b, :, n], weights @ value)


def test_softmax_attention_drops_nothing_where_it_is_deterministic(
    softmax_attention, qkv
):
    out = softmax_attention(*qkv, deterministic=True)
    query, key, value = qkv[:, 0, :, 0]
    check(out[0, :, 0], softmax_matrix(query, key) @ value)


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
    inputs = INPUTS
    mask = MASK
    if classifier.num_inputs == 2:
        inputs = np.stack([INPUTS, INPUTS], axis=1)
        mask = np.stack([MASK, MASK], axis=1)

    mask_of_rows = mask.reshape(-1, L)
    x, _ = call(classifier.encoder, inputs.reshape(-1, L), mask_of_rows, KEY)
    expected = classifier.read(x, mask_of_rows, None)

    check(call(classifier, inputs, mask, KEY), expected)
    assert relative_error(call(classifier, inputs, mask), expected) > 0.01


@pytest.mark.parametrize("model", [MaskedLanguageModel, MaskedOrderModel])
def test_masked_models_drop_in_their_encoder_alone(model):
    masked = make_model(model)
    x, _ = call(masked.encoder, INPUTS, MASK, KEY)
    check(call(masked, INPUTS, MASK, KEY), masked.decode(x))


@pytest.mark.parametrize(
    ("activation", "function"), [("gelu", exact_gelu), ("tanh", jnp.tanh)]
)
def test_first_token_classifier_drops_before_both_of_its_layers(activation, function):
    """The encoder does not draw from these two keys."""
    model = make_model(FirstTokenClassifier, num_classes=V, activation=activation)
    pooler_key, out_key = jax.random.split(jax.random.fold_in(KEY, 2**31), 2)

    x, _ = call(model.encoder, INPUTS, MASK, KEY)
    hidden = function(model.pooler(dropout(x[:, 0], RATE, pooler_key)))
    expected = model.out(dropout(hidden, RATE, out_key))

    check(call(model, INPUTS, MASK, KEY), expected)
