"""Exact attention: dropout of its weights, and the masks that it takes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

# Batch, tokens, heads and the size of a head.
B = 3
L = 7
N = 2
H = 8
make_softmax = functools.partial(make, "softmax", num_heads=N, head_dim=H)
SOFTMAX = make_softmax()


def qkv(batch=B):
    """Query, key and value [batch, L, N, H]."""
    return list(jnp.float32(normal(0, 3, batch, L, N, H)))


def attend(query, key, value, **options):
    """Exact attention, compiled."""
    return jax.jit(functools.partial(SOFTMAX, **options))(query, key, value)


def attended_weights(query, key, **options):
    """The weights [B, T, N, S], which are the output for V = I."""
    length = key.shape[1]
    value = np.zeros((*key.shape[:3], H), np.float32)
    value[:, np.arange(length), :, np.arange(length)] = 1
    return np.asarray(attend(query, key, value, **options))[..., :length]


@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_softmax_attention_drops_weights(broadcast_dropout):
    """A weight becomes 0 or is twice as large."""
    query, key, _ = qkv()
    exact = attended_weights(query, key)
    weights = attended_weights(
        query,
        key,
        dropout_rate=0.5,
        dropout_rng=jax.random.key(0),
        broadcast_dropout=broadcast_dropout,
        deterministic=False,
    )

    is_kept = weights != 0
    error = relative_error(weights[is_kept], 2 * exact[is_kept])
    assert error <= TOLERANCE["float32"]

    num_draws = L * L if broadcast_dropout else is_kept.size
    assert abs(is_kept.mean() - 0.5) < 5 * 0.5 / np.sqrt(num_draws)
    is_one_pattern = (is_kept == is_kept[:1, :, :1]).all()
    assert is_one_pattern == broadcast_dropout


def test_softmax_attention_drops_what_the_call_asks_for():
    """An explicit rate of 0 is none; like flax it drops unless deterministic."""
    dropping = make_softmax(dropout_rate=0.5)
    inputs = qkv()
    rng = jax.random.key(0)

    @jax.jit
    def attend_in_every_way(*inputs):
        return {
            "exact": dropping(*inputs, deterministic=True),
            "without a rate": SOFTMAX(*inputs),
            "rate 0": dropping(*inputs, dropout_rate=0.0, dropout_rng=rng),
            "by option": dropping(*inputs, dropout_rng=rng),
            "by call": SOFTMAX(*inputs, dropout_rate=0.5, dropout_rng=rng),
        }

    outputs = attend_in_every_way(*inputs)
    by_array = SOFTMAX(*inputs, dropout_rate=jnp.float32(0.5), dropout_rng=rng)
    assert relative_error(by_array, outputs["by call"]) <= TOLERANCE["same"]
    exact = outputs["exact"]
    assert relative_error(outputs["without a rate"], exact) <= TOLERANCE["same"]
    assert relative_error(outputs["rate 0"], exact) <= TOLERANCE["same"]
    assert relative_error(outputs["by option"], exact) > 0.1
    assert relative_error(outputs["by call"], exact) > 0.1


@pytest.mark.parametrize(
    "dropping_attention",
    [make_softmax(dropout_rate=0.5), functools.partial(SOFTMAX, dropout_rate=0.5)],
    ids=["option", "call"],
)
def test_softmax_attention_rejects_dropout_without_a_key(dropping_attention):
    with pytest.raises(ValueError, match=r"0\.5 needs a dropout_rng, or determin"):
        dropping_attention(*qkv())


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_softmax_attention_goes_by_the_dropout_of_flax(rate):
    x = qkv()[0].reshape(B, L, N * H)
    layer = nnx.MultiHeadAttention(
        num_heads=N,
        in_features=N * H,
        attention_fn=make_softmax(dropout_rate=0.3),
        dropout_rate=rate,
        decode=False,
        rngs=nnx.Rngs(0),
    )

    @nnx.jit
    def apply(layer, x):
        return layer(x, deterministic=False), layer(x, deterministic=True)

    dropped, exact = apply(layer, x)
    assert (relative_error(dropped, exact) > 0.1) == (rate > 0)


@pytest.mark.parametrize(
    ("argument", "shape"),
    [("bias", (2, N, L, L)), ("bias", (1, 5, L, L)), ("mask", (5, 1, L, L))],
)
def test_softmax_attention_refuses_what_does_not_broadcast(argument, shape):
    query, key, value = qkv()
    options = {argument: jnp.ones(shape, bool)}
    with pytest.raises(ValueError, match=rf"{argument} of shape .*does not broadcast"):
        SOFTMAX(query, key, value, **options)


def test_softmax_attention_refuses_a_mask_in_the_place_of_a_bias():
    """As a bias True is a 1, so that every key would be attended to."""
    query, key, value = qkv()
    mask = jnp.ones((1, 1, 1, L), bool)
    with pytest.raises(ValueError, match=r"boolean array.*pass a mask by its name"):
        SOFTMAX(query, key, value, mask)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_softmax_attention_of_an_empty_batch_is_empty(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    query, key, value = qkv(batch=0)
    assert attend(query, key, value).shape == query.shape


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_softmax_attention_of_no_queries_is_empty(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    query, key, value = qkv()
    no_queries = query[:, :0]
    assert attend(no_queries, key, value).shape == no_queries.shape


VALID = np.arange(L) < np.array([[L], [4], [1]])


def causal_padding_mask(helper):
    """[B, 1, L, L] bool by the functions of nnx or of linen."""
    padding_mask = helper.make_attention_mask(np.ones_like(VALID), VALID, dtype=bool)
    causal_mask = helper.make_causal_mask(VALID, dtype=bool)
    return helper.combine_masks(padding_mask, causal_mask, dtype=bool)


@pytest.mark.parametrize("helper", [nnx, linen])
def test_softmax_attention_takes_boolean_masks_of_flax(helper):
    query, key, value = qkv()
    mask = causal_padding_mask(helper)
    out = attend(query, key, value, mask=mask)
    expected = attend(query, key, value, mask=VALID[:, None, None], is_causal=True)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    "mask",
    [
        np.where(VALID, 0, -np.inf)[:, None, None].astype(np.float32),
        nnx.combine_masks(causal_padding_mask(nnx)),
        linen.combine_masks(causal_padding_mask(linen)),
    ],
    ids=["to add", "nnx", "linen"],
)
def test_softmax_attention_rejects_masks_of_floats(mask):
    """A mask to add, of 0 and −inf, would be read the wrong way round."""
    with pytest.raises(ValueError, match=r"boolean.*float32; .*dtype=bool"):
        SOFTMAX(*qkv(), mask=mask)


def test_softmax_attention_sows_the_weights_of_the_output():
    layer = nnx.MultiHeadAttention(
        num_heads=N,
        in_features=N * H,
        decode=False,
        attention_fn=SOFTMAX,
        rngs=nnx.Rngs(0),
    )
    x = qkv()[0].reshape(B, L, N * H)
    layer_with_sown_weights = nnx.capture(
        lambda layer, x: layer(x, sow_weights=True), nnx.Intermediate
    )
    _, sown = layer_with_sown_weights(layer, x)
    [weights] = jax.tree.leaves(sown)

    scores = jnp.einsum("btnh,bsnh->bnts", layer.query(x), layer.key(x))
    expected = jax.nn.softmax(scores / H**0.5)
    assert relative_error(weights, expected) <= TOLERANCE["float32"]
