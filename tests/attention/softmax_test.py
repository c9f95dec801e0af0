"""Exact attention: in groups as all at once, and dropout of the weights."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention import grouped_softmax
from nystromformer.attention.grouped_softmax import choose_group_sizes, map_rows
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

B, L, N, H = 3, 7, 2, 8
make_softmax = functools.partial(make, "softmax", num_heads=N, head_dim=H)
SOFTMAX = make_softmax()
BLOCK = 21
LONG = 61  # in three blocks, the last one not full


def qkv(length=LONG, batch=2, dtype=jnp.float32):
    """Query, key and value [batch, length, N, H]."""
    return [jnp.asarray(normal(seed, batch, length, N, H), dtype) for seed in range(3)]


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
    """Dropped ones are 0, the others twice as large."""
    query, key, _ = qkv(L, B)
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
    inputs = qkv(L, B)
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
    exact = outputs["exact"]
    assert relative_error(outputs["without a rate"], exact) == 0
    assert relative_error(outputs["rate 0"], exact) == 0
    assert relative_error(outputs["by option"], exact) > 0.1
    assert relative_error(outputs["by call"], exact) > 0.1


@pytest.mark.parametrize(
    "attend",
    [
        make_softmax(dropout_rate=0.5),
        functools.partial(SOFTMAX, dropout_rate=0.5),
    ],
    ids=["option", "call"],
)
def test_softmax_attention_rejects_dropout_without_a_key(attend):
    with pytest.raises(ValueError, match=r"0\.5 needs a dropout_rng, or determin"):
        attend(*qkv(L, B))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_softmax_attention_goes_by_the_dropout_of_flax(rate):
    x = qkv(L, B)[0].reshape(B, L, N * H)
    layer = nnx.MultiHeadAttention(
        N,
        N * H,
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


@pytest.fixture(params=["one head at a time", "heads together", "accelerator"])
def three_blocks(monkeypatch, request):
    """Blocks of 21 queries, as a CPU and an accelerator take them."""
    scores_of_block = LONG * BLOCK
    if request.param == "accelerator":
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(grouped_softmax, "MAX_SCORES", 2 * N * scores_of_block)
    num_heads = 1 if request.param == "one head at a time" else 2 * N
    monkeypatch.setattr(grouped_softmax, "CPU_SCORES", num_heads * scores_of_block)
    monkeypatch.setattr(grouped_softmax, "CPU_BLOCK", BLOCK)


def attend_at_once(query, key, value, bias=0.0, mask=True, is_causal=False):
    """softmax(Q Kᵀ / √H + bias) V with all scores at once."""
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / H**0.5
    bias = np.asarray(bias)
    scores += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if is_causal:
        mask = mask & np.tril(np.ones((1, 1, LONG, LONG), bool))
    scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores), value)


def with_derivatives(function, inputs, is_valid):
    """The outputs of valid queries, their tangents, and the gradients of inputs."""
    rows = is_valid[..., None, None]

    @jax.jit
    def compute(inputs):
        tangents = [jnp.sin(x) for x in inputs]
        out, out_tangent = jax.jvp(function, inputs, tangents)
        _, backward = jax.vjp(function, *inputs)
        gradients = backward(jnp.where(rows, jnp.cos(inputs[0]), 0))
        return [jnp.where(rows, out, 0), jnp.where(rows, out_tangent, 0), *gradients]

    return compute(inputs)


PADDING = np.arange(LONG) < np.array([[LONG - 9], [30]])
ALL_VALID = np.ones((2, LONG), bool)
DENSE_MASK = np.random.default_rng(2).random((2, 1, LONG, LONG)) < 0.9
IN_BLOCKS = {  # options, and which queries are valid
    "plain": ({}, ALL_VALID),
    "padding": ({"mask": PADDING[:, None, None]}, PADDING),
    "mask": ({"mask": DENSE_MASK}, ALL_VALID),
    "bias": ({"bias": normal(3, 1, N, LONG, LONG)}, ALL_VALID),
    "causal with a bias of keys": (
        {"bias": normal(3, LONG), "is_causal": True},
        ALL_VALID,
    ),
}


@functools.cache
def exact_with_derivatives(case):
    """In float64, with all scores at once."""
    options, is_valid = IN_BLOCKS[case]
    with jax.enable_x64(True):
        return with_derivatives(
            functools.partial(attend_at_once, **options),
            [np.asarray(x, np.float64) for x in qkv()],
            is_valid,
        )


@pytest.mark.parametrize("case", IN_BLOCKS)
def test_softmax_attention_in_blocks_is_that_at_once(case, three_blocks):
    """And so are its derivatives, beside float64."""
    options, is_valid = IN_BLOCKS[case]
    actual = with_derivatives(functools.partial(SOFTMAX, **options), qkv(), is_valid)
    for array, expected in zip(actual, exact_with_derivatives(case), strict=True):
        assert relative_error(array, expected) <= TOLERANCE["float32"]


def test_softmax_attention_in_blocks_draws_dropout_for_each(three_blocks):
    query, key, value = qkv()
    out = attend(
        0 * query,
        0 * key,
        jnp.ones_like(value),
        dropout_rate=0.5,
        dropout_rng=jax.random.key(0),
        deterministic=False,
    )
    kept_share = np.asarray(out)[0, :, 0, 0]  # of the weights of each query
    assert abs(kept_share.mean() - 1) < 5 / LONG
    first_block = kept_share[:BLOCK]
    second_block = kept_share[BLOCK : 2 * BLOCK]
    assert (first_block != second_block).mean() > 0.8


def test_softmax_attention_in_blocks_sums_gradients_of_bfloat16_wide(monkeypatch):
    """Those of keys and values are sums over 32 blocks."""

    def gradients(inputs):
        def total(query, key, value):
            return SOFTMAX(query, key, value).astype(jnp.float32).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)

    inputs = qkv(32 * 8, 1, jnp.bfloat16)
    exact = gradients([x.astype(jnp.float32) for x in inputs])
    at_once = gradients(inputs)
    monkeypatch.setattr(grouped_softmax, "CPU_BLOCK", 8)
    in_blocks = gradients(inputs)
    for i in range(3):
        error_at_once = relative_error(at_once[i], exact[i])
        assert relative_error(in_blocks[i], exact[i]) <= 1.2 * error_at_once


@pytest.mark.parametrize("num_rows", [1, 2, 7])
@pytest.mark.parametrize("group_size", [1, 3, None])
def test_map_rows_shares_single_rows_and_none(num_rows, group_size):
    def function(row, shared, missing):
        assert missing is None
        return row + shared

    rows = jnp.arange(2.0 * num_rows).reshape(num_rows, 2)
    out = map_rows(
        function,
        rows,
        jnp.array([[10.0, 20.0]]),
        None,
        num_rows=num_rows,
        group_size=group_size,
    )
    np.testing.assert_array_equal(out, rows + np.array([[10.0, 20.0]]))


def test_choose_group_sizes_keeps_scores_in_the_cache_of_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    sizes = choose_group_sizes((32, 1024, 2, 64), num_keys=1024)
    assert sizes == (2, 4, 128)  # 2 sequences or 4 heads of 128 x 1024 scores
    assert choose_group_sizes((32, 2**20, 2, 64), num_keys=2**20) == (1, 1, 1)


def test_choose_group_sizes_takes_a_sharded_batch_at_once(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    sizes = choose_group_sizes((32, 1024, 2, 64), num_keys=1024)
    assert sizes.sequences is None


@pytest.mark.parametrize(
    ("argument", "shape"),
    [("bias", (3, N, L, L)), ("bias", (1, 5, L, L)), ("mask", (5, 1, L, L))],
)
def test_softmax_attention_refuses_what_does_not_broadcast(argument, shape):
    query, key, value = qkv(L)
    with pytest.raises(ValueError, match=rf"{argument} of shape .*does not broadcast"):
        SOFTMAX(query, key, value, **{argument: jnp.ones(shape, bool)})


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_softmax_attention_of_an_empty_batch_is_empty(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    query, key, value = qkv(L, batch=0)
    assert attend(query, key, value).shape == query.shape


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_softmax_attention_of_no_queries_is_empty(backend, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    query, key, value = qkv(L, B)
    no_queries = query[:, :0]
    assert attend(no_queries, key, value).shape == no_queries.shape


def causal_padding_mask(helper, is_valid):
    """[B, 1, L, L] bool by the functions of nnx or of linen."""
    return helper.combine_masks(
        helper.make_attention_mask(np.ones_like(is_valid), is_valid, dtype=bool),
        helper.make_causal_mask(is_valid, dtype=bool),
        dtype=bool,
    )


VALID = np.arange(L) < np.array([[L], [4], [1]])


@pytest.mark.parametrize("helper", [nnx, linen])
def test_softmax_attention_takes_boolean_masks_of_flax(helper):
    query, key, value = qkv(L, B)
    mask = causal_padding_mask(helper, VALID)
    out = attend(query, key, value, mask=mask)
    expected = attend(query, key, value, mask=VALID[:, None, None], is_causal=True)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize(
    "mask",
    [
        np.where(VALID, 0, -np.inf)[:, None, None].astype(np.float32),
        nnx.combine_masks(causal_padding_mask(nnx, VALID)),
        linen.combine_masks(causal_padding_mask(linen, VALID)),
    ],
    ids=["to add", "nnx", "linen"],
)
def test_softmax_attention_rejects_masks_of_floats(mask):
    """A mask to add, of 0 and −inf, would be read the wrong way round."""
    with pytest.raises(ValueError, match=r"boolean.*float32; .*dtype=bool"):
        SOFTMAX(*qkv(L, B), mask=mask)


def test_softmax_attention_holds_the_scores_of_a_block(monkeypatch):
    x = jax.ShapeDtypeStruct((1, 1024, N, H), jnp.float32)

    def temporary_bytes():
        def total(query, key, value):
            return SOFTMAX(query, key, value).sum()

        gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
        memory = gradient.lower(x, x, x).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    in_blocks = temporary_bytes()
    monkeypatch.setattr(grouped_softmax, "CPU_BLOCK", 1024)
    at_once = temporary_bytes()
    assert in_blocks < at_once / 4


def test_softmax_attention_sows_the_weights_of_the_output():
    layer = nnx.MultiHeadAttention(
        num_heads=N,
        in_features=N * H,
        decode=False,
        attention_fn=SOFTMAX,
        rngs=nnx.Rngs(0),
    )
    x = qkv()[0].reshape(2, LONG, N * H)
    attend = nnx.capture(lambda layer, x: layer(x, sow_weights=True), nnx.Intermediate)
    _, sown = attend(layer, x)
    [weights] = jax.tree.leaves(sown)

    scores = jnp.einsum("btnh,bsnh->bnts", layer.query(x), layer.key(x))
    expected = jax.nn.softmax(scores / H**0.5)
    assert relative_error(weights, expected) <= TOLERANCE["float32"]
