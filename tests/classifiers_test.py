"""Pooling, heads, and the model as a whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.classifiers import (
    FirstTokenClassifier,
    PairClassifier,
    SequenceClassifier,
    TokenClassifier,
    pool_last,
    pool_max,
    pool_mean,
    pool_padded_mean,
)
from nystromformer.encoder_config import EncoderConfig
from nystromformer.token_models import MaskedLanguageModel, MaskedOrderModel
from tests.encoder_cases import (
    INPUTS,
    LENGTHS,
    MASK,
    B,
    D,
    L,
    V,
    compile_model,
    encoder_config,
)
from tests.paper import gelu
from tests.tolerance import TOLERANCE, relative_error

C = 7


def make(model=SequenceClassifier, pooling="mean", **options):
    config = encoder_config(**options)
    return model(config, num_classes=C, pooling=pooling, rngs=nnx.Rngs(0))


@functools.cache
def compiled_classifier(**options):
    return compile_model(make(**options))


def apply_linear(layer, x):
    """A linear layer in numpy."""
    return x @ np.float64(layer.kernel[...]) + np.float64(layer.bias[...])


def encode(model):
    """The vectors of the model's encoder in float64, [B, L, D]."""
    x, _ = compile_model(model.encoder)(INPUTS, MASK)
    return np.float64(x)


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
    pool = jax.jit(make(pooling=pooling, attention="identity").pool)

    def expected(lengths):
        """The vectors of rows without padding."""
        pool_row = POOLS[pooling]
        rows = zip(np.float64(x), lengths, strict=True)
        return [pool_row(row[:length]) for row, length in rows]

    dirty = np.where(MASK[:, :, None], x, np.nan)
    assert relative_error(pool(dirty, MASK), expected(LENGTHS)) <= TOLERANCE["same"]
    assert relative_error(pool(x, None), expected([L] * B)) <= TOLERANCE["same"]
    if pooling != "cls_token":
        assert not pool(x, np.zeros((B, L), bool)).any()


@pytest.mark.parametrize("pooling", POOLS)
def test_sequence_classifier_promotes_no_dtype_unasked(pooling):
    graphdef, state = nnx.split(make(pooling=pooling, attention="identity"))

    def logits(state):
        return nnx.merge(graphdef, state)(jnp.asarray(INPUTS), MASK)

    with jax.numpy_dtype_promotion("strict"):
        # This raises where a dtype is promoted.
        jax.eval_shape(logits, state)


def test_pair_classifier_rejects_inputs_and_masks_that_are_no_pairs():
    pairs = np.stack([INPUTS, INPUTS], axis=1)
    masks = np.stack([MASK, MASK], axis=1)
    model = make(PairClassifier, attention="identity")
    assert jax.eval_shape(model, pairs, masks).shape == (B, C)
    assert jax.eval_shape(model, pairs[:0], masks[:0]).shape == (0, C)
    with pytest.raises(ValueError, match=r"inputs must be \[B, 2, L\].*got \(3, 31\)"):
        model(INPUTS)
    for mask in (MASK, masks[:, :, None]):
        with pytest.raises(ValueError, match=r"mask must be \[B, 2, L\], here \(3, 2"):
            model(pairs, mask)
    with pytest.raises(ValueError, match="mask must be an array, got a list"):
        model(pairs, masks.tolist())
    token_types = np.zeros_like(pairs).swapaxes(0, 1)
    with pytest.raises(ValueError, match=r"token_types must be .*got \(2, 3, 31\)"):
        model(pairs, masks, token_types=token_types)


@pytest.mark.parametrize("pooling", ["mean", "cls_token"])
def test_sequence_classifier_ignores_padding_and_batch(pooling):
    has_cls_token = pooling == "cls_token"
    classify = compiled_classifier(
        pooling=pooling, cls_token=has_cls_token, attention="softmax"
    )
    logits = classify(INPUTS, MASK)
    assert logits.shape == (B, C)
    other_tokens = np.where(MASK, INPUTS, (INPUTS + 5) % V)
    # Both are of one program, which masks the ids before it computes.
    np.testing.assert_array_equal(classify(other_tokens, MASK), logits)
    assert relative_error(classify(other_tokens), classify(INPUTS)) > 1e-3
    logits_of_one_row = classify(INPUTS[1:2, :19])
    assert relative_error(logits[1:2], logits_of_one_row) <= TOLERANCE["float32"]


def test_sequence_classifier_reads_a_picture_that_is_all_black():
    """Nothing of it counts: its logits are those of no token, and all is finite."""
    graphdef, state = nnx.split(make(ignore_id=0))
    pictures = INPUTS.copy()
    pictures[1] = 0

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(state, pictures):
        logits = nnx.merge(graphdef, state)(pictures)
        return jnp.sin(logits).sum(), logits

    (_, logits), gradient = run(state, pictures)
    np.testing.assert_array_equal(logits[1], 0)  # the biases are zero
    assert np.isfinite(logits).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_sequence_classifier_rejects_a_cls_token_that_is_not_pooled():
    with pytest.raises(ValueError, match="cls_token=True needs pooling"):
        make(cls_token=True)


def test_pair_classifier_is_one_encoder_and_four_features():
    """Head on [x₀, x₁, x₀·x₁, x₀ − x₁], ReLU between two linear layers, in numpy."""
    model = make(PairClassifier, attention="softmax")
    inputs = np.stack([INPUTS, (INPUTS * 3 + 1) % V], axis=1)
    mask = np.stack([MASK, MASK[::-1]], axis=1)
    encode_text = compile_model(model.encoder)

    def pooled_text(i):
        x, _ = encode_text(inputs[:, i], mask[:, i])
        rows = zip(np.asarray(x, np.float64), mask[:, i], strict=True)
        return np.array([row[is_valid].mean(0) for row, is_valid in rows])

    x0 = pooled_text(0)
    x1 = pooled_text(1)
    features = np.concatenate([x0, x1, x0 * x1, x0 - x1], axis=1)
    hidden = np.maximum(apply_linear(model.head.hidden, features), 0)
    expected = apply_linear(model.head.out, hidden)
    classify = compile_model(model)
    assert relative_error(classify(inputs, mask), expected) <= TOLERANCE["float32"]
    logits_of_swapped_texts = classify(inputs[:, ::-1], mask[:, ::-1])
    assert relative_error(logits_of_swapped_texts, expected) > 1e-3


def test_sequence_classifier_in_bfloat16_has_float32_logits_and_gradients():
    graphdef, state = nnx.split(make(dtype=jnp.bfloat16))

    def loss(state):
        logits = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK))
        assert logits.dtype == jnp.float32
        weights = jnp.cos(jnp.arange(C))[None, :]
        return (logits * weights).sum()

    for grad in jax.tree.leaves(jax.jit(jax.grad(loss))(state)):
        assert grad.dtype == jnp.float32
        assert np.isfinite(grad).all()
        assert np.asarray(grad).any()


def test_token_classifier_is_linear_on_each_vector():
    config = encoder_config(dtype=jnp.bfloat16, attention="identity")
    model = TokenClassifier(config, num_classes=C, rngs=nnx.Rngs(0))
    expected = apply_linear(model.out, encode(model))
    logits = compile_model(model)(INPUTS, MASK)
    assert logits.dtype == jnp.float32
    assert logits.shape == (B, L, C)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("model", [TokenClassifier, MaskedLanguageModel])
def test_models_of_tokens_reject_a_cls_token(model):
    """It would have logits in front of those of the first token."""
    options = {"num_classes": C} if model is TokenClassifier else {}
    config = encoder_config(cls_token=True, attention="identity")
    with pytest.raises(ValueError, match=r"cls_token=True .* take cls_token=False"):
        model(config, **options, rngs=nnx.Rngs(0))


def test_masked_language_model_rejects_features():
    config = encoder_config(vocab_size=None, input_dim=V, attention="identity")
    with pytest.raises(
        ValueError, match=rf"token ids, .* \(input_dim={V}\): take a model"
    ):
        MaskedLanguageModel(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("model", [SequenceClassifier, PairClassifier])
def test_classifiers_have_the_papers_parameters(model):
    """2 layers of width 64 and FFN 128, counted layer by layer."""

    def linear(fan_in, fan_out):
        return fan_in * fan_out + fan_out

    norm = 2 * 64
    attention = 4 * linear(64, 64) + 35 * 2
    mlp = linear(64, 128) + linear(128, 64)
    block = 2 * norm + attention + mlp
    num_features = 64 if model is SequenceClassifier else 4 * 64
    head = linear(num_features, 128) + linear(128, 10)
    embeddings = (16 + 2048) * 64
    expected = embeddings + 2 * block + norm + head

    config = EncoderConfig(
        vocab_size=16, max_length=2048, attention_options={"conv_kernel_size": 35}
    )
    classifier = nnx.eval_shape(lambda: model(config, num_classes=10, rngs=nnx.Rngs(0)))
    assert count(classifier) == expected


def published_config(gelu="erf"):
    """It has dropout, so that tests see when it is on."""
    return encoder_config(attention="identity", gelu=gelu, dropout_rate=0.5)


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_masked_language_model_is_its_formula(kind):
    model = MaskedLanguageModel(published_config(kind), rngs=nnx.Rngs(0))
    model.bias[...] = np.arange(V, dtype=np.float32)
    # Both GELUs differ there, and the norm is not the one of the encoder.
    model.transform.kernel[...] *= 5
    model.norm.scale[...] *= 2

    transformed = encode(model) @ np.float64(model.transform.kernel[...])
    hidden = gelu(transformed, kind)
    centred = hidden - hidden.mean(-1, keepdims=True)
    normalised = 2 * centred / np.sqrt(hidden.var(-1, keepdims=True) + 1e-5)
    embedding = np.float64(model.encoder.embedding.embedding[...])
    expected = normalised @ embedding.T + np.arange(V)
    logits = nnx.jit(model)(INPUTS, MASK)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("activation", "kind", "function"),
    [
        ("gelu", "erf", lambda x: gelu(x, "erf")),
        ("gelu", "tanh", lambda x: gelu(x, "tanh")),
        ("tanh", "erf", np.tanh),
    ],
)
def test_first_token_classifier_is_its_formula(activation, kind, function):
    model = FirstTokenClassifier(
        published_config(kind), num_classes=C, activation=activation, rngs=nnx.Rngs(0)
    )
    # Both GELUs differ there.
    model.pooler.kernel[...] *= 5
    pooled = apply_linear(model.pooler, encode(model)[:, 0])
    expected = apply_linear(model.out, function(pooled))
    logits = nnx.jit(model)(INPUTS, MASK)
    assert relative_error(logits, expected) <= TOLERANCE["float32"]


def test_masked_order_model_reads_the_first_vector():
    model = MaskedOrderModel(published_config(), rngs=nnx.Rngs(0))
    model.ordered.bias[...] = 1
    x = encode(model)
    hidden = np.tanh(apply_linear(model.pooler, x[:, 0]))
    expected = apply_linear(model.ordered, hidden)
    assert relative_error(model.order(x), expected) <= TOLERANCE["float32"]


def test_sequence_classifier_is_trained_in_linen_by_to_linen():
    model = make()
    layer = nnx.bridge.to_linen(SequenceClassifier, encoder_config(), num_classes=C)
    variables = jax.jit(layer.init)(jax.random.key(0), INPUTS)
    params = variables["params"]
    assert count(model) == sum(x.size for x in jax.tree.leaves(params))

    @jax.jit
    @jax.grad
    def gradient(params):
        logits = layer.apply({**variables, "params": params}, INPUTS, MASK)
        return jnp.square(logits).sum()

    for leaf in jax.tree.leaves(gradient(params)):
        assert np.asarray(leaf).any()


def test_pair_classifier_takes_features():
    features = np.random.default_rng(2).normal(size=(B, 2, L, V)).astype(np.float32)
    mask = np.stack([MASK, MASK], axis=1)
    model = make(PairClassifier, attention="identity", vocab_size=None, input_dim=V)
    classify = compile_model(model)
    logits = classify(features, mask)
    assert logits.shape == (B, C)
    swapped_logits = classify(features[:, ::-1], mask)
    assert relative_error(swapped_logits, logits) > 1e-3


@pytest.mark.parametrize(
    ("pool", "pool_row"),
    [
        (pool_mean, lambda row: row.mean(0)),
        (
            functools.partial(pool_padded_mean, max_length=17),
            lambda row: row.sum(0) / 17,
        ),
        (pool_max, lambda row: row.max(0)),
        (pool_last, lambda row: row[-1]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pooling_is_of_valid_tokens_wherever_padding_stands(pool, pool_row, dtype):
    """In front, as of prompts, or between, as of an `ignore_id`."""
    x = np.random.default_rng(0).normal(size=(B, L, D)).astype(dtype)
    mask = np.random.default_rng(1).random((B, L)) < 0.5
    mask[0] = np.arange(L) >= 7
    mask[1, -3:] = False
    rows = zip(np.float64(x), mask, strict=True)
    expected = [pool_row(row[is_valid]) for row, is_valid in rows]
    with jax.enable_x64(dtype == "float64"):
        pooled = pool(jnp.asarray(x), jnp.asarray(mask))
        assert pooled.dtype == dtype
        tolerance = TOLERANCE["same" if dtype == "float32" else "float64"]
        assert relative_error(pooled, expected) <= tolerance
