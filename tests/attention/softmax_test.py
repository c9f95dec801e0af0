"""Exact attention: in blocks as all at once, and dropout of the weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention import softmax
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

B, L, N, H = 3, 7, 2, 8
SOFTMAX = make("softmax")
LONG = 61  # in three blocks of 21, the last one not full


def inputs(length=LONG, batch=2, dtype=jnp.float32):
    return [jnp.asarray(normal(i, batch, length, N, H), dtype) for i in range(3)]


@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_softmax_attention_drops_weights(broadcast_dropout):
    """With V = I the output is the weights: dropped ones 0, the others twice."""
    query, key, _ = inputs(L, B)
    value = jnp.zeros((B, L, N, H)).at[:, jnp.arange(L), :, jnp.arange(L)].set(1)
    options = {"dropout_rng": jax.random.key(0), "broadcast_dropout": broadcast_dropout}
    exact = np.asarray(SOFTMAX(query, key, value))[..., :L]
    out = SOFTMAX(query, key, value, dropout_rate=0.5, deterministic=False, **options)
    out = np.asarray(out)[..., :L]  # [B, T, N, S]
    kept = out != 0
    assert relative_error(out[kept], 2 * exact[kept]) <= TOLERANCE["float32"]
    draws = L * L if broadcast_dropout else kept.size
    assert abs(kept.mean() - 0.5) < 5 * 0.5 / np.sqrt(draws)
    assert (kept == kept[:1, :, :1]).all() == broadcast_dropout


def test_softmax_attention_drops_what_the_call_asks_for():
    """An explicit rate of 0 is none; like flax it drops unless deterministic."""
    drops = make("softmax", dropout_rate=0.5)
    x, key = inputs(L, B), {"dropout_rng": jax.random.key(0)}
    exact = drops(*x, deterministic=True)
    assert relative_error(drops(*x, dropout_rate=0.0, **key), exact) == 0
    assert relative_error(drops(*x, **key), exact) > 0.1
    assert relative_error(SOFTMAX(*x, dropout_rate=0.5, **key), exact) > 0.1
    assert relative_error(SOFTMAX(*x), exact) == 0
    for attend in (drops, functools.partial(SOFTMAX, dropout_rate=0.5)):
        with pytest.raises(ValueError, match=r"0\.5 needs a dropout_rng, or determin"):
            attend(*x)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_softmax_attention_goes_by_the_dropout_of_flax(rate):
    x = inputs(L, B)[0].reshape(B, L, N * H)
    options = {"dropout_rate": rate, "decode": False, "rngs": nnx.Rngs(0)}
    attend = make("softmax", dropout_rate=0.3)
    layer = nnx.MultiHeadAttention(N, N * H, attention_fn=attend, **options)
    at_work, exact = (layer(x, deterministic=y) for y in (False, True))
    assert (relative_error(at_work, exact) > 0.1) == (rate > 0)


@pytest.fixture(params=["one head at a time", "heads together", "accelerator"])
def three_blocks(monkeypatch, request):
    """Blocks of 21 queries, as a CPU and an accelerator take them."""
    if request.param == "accelerator":
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(softmax, "MAX_SCORES", 2 * N * LONG * 21)
    heads = 1 if "one" in request.param else 2 * N
    monkeypatch.setattr(softmax, "CPU_SCORES", heads * LONG * 21)
    monkeypatch.setattr(softmax, "CPU_BLOCK", 21)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mask": np.arange(LONG) < np.array([[[[LONG - 9]]], [[[30]]]])},
        {"mask": np.random.default_rng(2).random((2, 1, LONG, LONG)) < 0.9},
        {"bias": normal(3, 1, N, LONG, LONG)},
        {"bias": normal(3, LONG), "is_causal": True},
    ],
    ids=["plain", "padding", "mask", "bias", "causal with a bias of keys"],
)
def test_softmax_attention_in_blocks_is_that_at_once(options, three_blocks):
    """Beside softmax over all at once in float64; and their derivatives."""
    query, key, value = inputs()
    valid = np.ones((2, LONG), bool)
    if (mask := options.get("mask")) is not None and mask.shape[2] == 1:
        valid = mask[:, 0, 0]

    def plain(query, key, value):
        scores = jnp.einsum("btnh,bsnh->bnts", query, key) / H**0.5
        bias = np.asarray(options.get("bias", 0.0))
        scores += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
        causal = np.tril(np.ones((1, 1, LONG, LONG), bool))
        mask = causal if "is_causal" in options else True
        scores = jnp.where(options.get("mask", True) & mask, scores, -jnp.inf)
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)

    def blocks(*qkv):
        return SOFTMAX(*qkv, **options)

    def with_derivatives(attend, qkv):
        rows, (_, backward) = valid[..., None, None], jax.vjp(attend, *qkv)
        outs = jax.jvp(attend, qkv, [jnp.sin(x) for x in qkv])  # and its tangent
        gradients = backward(jnp.where(rows, jnp.cos(qkv[0]), 0))
        return [*(jnp.where(rows, x, 0) for x in outs), *gradients]

    with jax.enable_x64(True):
        wide = [np.asarray(x, np.float64) for x in (query, key, value)]
        expected = with_derivatives(plain, wide)
    found = with_derivatives(blocks, [query, key, value])
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) <= TOLERANCE["float32"]


def test_softmax_attention_in_blocks_draws_dropout_for_each(three_blocks):
    query, key, value = (jnp.zeros_like(x) for x in inputs())
    options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(0)}
    out = SOFTMAX(query, key, value + 1, deterministic=False, **options)
    kept = np.asarray(out)[0, :, 0, 0]  # how much of each query's weights is left
    assert abs(kept.mean() - 1) < 5 / LONG
    assert (kept[:21] != kept[21:42]).mean() > 0.8


def test_softmax_attention_in_blocks_sums_gradients_of_bfloat16_wide(monkeypatch):
    """Those of keys and values are sums over 32 blocks."""
    x = inputs(32 * 8, 1, jnp.bfloat16)

    def gradients(qkv):
        def total(*qkv):
            return SOFTMAX(*qkv).astype(jnp.float32).sum()

        return jax.grad(total, (0, 1, 2))(*qkv)

    at_once, exact = gradients(x), gradients([y.astype(jnp.float32) for y in x])
    monkeypatch.setattr(softmax, "CPU_BLOCK", 8)
    for one, other, wide in zip(gradients(x), at_once, exact, strict=True):
        assert relative_error(one, wide) <= 1.2 * relative_error(other, wide)


@pytest.mark.parametrize(
    ("what", "shape"),
    [("bias", (3, N, L, L)), ("bias", (1, 5, L, L)), ("mask", (5, 1, L, L))],
)
def test_softmax_attention_refuses_what_does_not_broadcast(what, shape):
    query, key, value = inputs(L)
    with pytest.raises(ValueError, match=rf"{what} of shape .*does not broadcast"):
        SOFTMAX(query, key, value, **{what: jnp.ones(shape, bool)})


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_softmax_attention_of_an_empty_batch_is_empty(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    x = inputs(L, 0)
    assert SOFTMAX(*x).shape == x[0].shape


def test_softmax_attention_of_no_queries_is_empty():
    query, (_, key, value) = inputs(0, B)[0], inputs(L, B)
    assert SOFTMAX(query, key, value).shape == query.shape


@pytest.mark.parametrize("helper", [nnx, linen])
def test_softmax_attention_takes_masks_of_flax_as_booleans(helper):
    """A mask to add, of 0 and −inf, would be read the wrong way round."""
    x, valid = inputs(L, B), np.arange(L) < np.array([[L], [4], [1]])
    options = {"dtype": bool}
    mask = helper.make_attention_mask(np.ones_like(valid), valid, **options)
    mask = helper.combine_masks(
        mask, helper.make_causal_mask(valid, **options), **options
    )
    expected = SOFTMAX(*x, mask=valid[:, None, None], is_causal=True)
    assert relative_error(SOFTMAX(*x, mask=mask), expected) <= TOLERANCE["float32"]
    added = np.where(valid, 0, -np.inf)[:, None, None].astype(np.float32)
    for wrong in (added, helper.combine_masks(mask)):
        with pytest.raises(ValueError, match=r"boolean.*float32; .*dtype=bool"):
            SOFTMAX(*x, mask=wrong)


def test_softmax_attention_holds_the_scores_of_a_block(monkeypatch):
    x = jax.ShapeDtypeStruct((1, 1024, N, H), jnp.float32)

    def held():
        gradient = jax.grad(lambda *qkv: SOFTMAX(*qkv).sum(), (0, 1, 2))
        memory = jax.jit(gradient).lower(x, x, x).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    blocks = held()
    monkeypatch.setattr(softmax, "CPU_BLOCK", 1024)
    assert blocks < held() / 4


def test_softmax_attention_sows_the_weights_of_the_output():
    options = {"num_heads": N, "in_features": N * H, "decode": False}
    layer = nnx.MultiHeadAttention(**options, attention_fn=SOFTMAX, rngs=nnx.Rngs(0))
    x = inputs()[0].reshape(2, LONG, N * H)
    sow = nnx.capture(lambda layer, x: layer(x, sow_weights=True), nnx.Intermediate)
    weights = jax.tree.leaves(sow(layer, x)[1])[0]
    query, key = layer.query(x), layer.key(x)
    expected = jax.nn.softmax(jnp.einsum("btnh,bsnh->bnts", query, key) / H**0.5)
    assert relative_error(weights, expected) <= TOLERANCE["float32"]
