"""Exact attention in groups of sequences, heads and queries, beside all at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention import softmax_groups
from nystromformer.attention.softmax_groups import choose_group_sizes, map_rows
from tests.attention.cases import make, normal
from tests.tolerance import TOLERANCE, relative_error

# Batch, heads, the size of a head, and tokens in three blocks, the last one not full.
B = 2
N = 2
H = 8
L = 61
BLOCK = 21
SOFTMAX = make("softmax", num_heads=N, head_dim=H)


def qkv(dtype=jnp.float32):
    """Query, key and value [B, L, N, H]."""
    return [jnp.asarray(x, dtype) for x in normal(0, 3, B, L, N, H)]


@pytest.fixture(params=["one head at a time", "heads together", "accelerator"])
def cut_into_three_blocks(monkeypatch, request):
    """Blocks of 21 queries, as a CPU and an accelerator take them."""
    scores_of_block = L * BLOCK
    if request.param == "accelerator":
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(softmax_groups, "MAX_SCORES", B * N * scores_of_block)
    num_heads = 1 if request.param == "one head at a time" else B * N
    monkeypatch.setattr(softmax_groups, "CPU_SCORES", num_heads * scores_of_block)
    monkeypatch.setattr(softmax_groups, "CPU_BLOCK", BLOCK)


def attend_at_once(query, key, value, bias=0.0, mask=True, is_causal=False):
    """softmax(Q Kᵀ / √H + bias) V with all scores at once."""
    scores = jnp.einsum("btnh,bsnh->bnts", query, key) / H**0.5
    bias = np.asarray(bias)
    scores += bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    if is_causal:
        mask = mask & np.tril(np.ones((1, 1, L, L), bool))
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


PADDING = np.arange(L) < np.array([[L - 9], [30]])
ALL_VALID = np.ones((B, L), bool)
DENSE_MASK = np.random.default_rng(2).random((B, 1, L, L)) < 0.9
# Options, and which queries are valid.
CASES = {
    "plain": ({}, ALL_VALID),
    "padding": ({"mask": PADDING[:, None, None]}, PADDING),
    "mask": ({"mask": DENSE_MASK}, ALL_VALID),
    "bias": ({"bias": normal(3, 1, N, L, L)}, ALL_VALID),
    "causal with a bias of keys": (
        {"bias": normal(3, L), "is_causal": True},
        ALL_VALID,
    ),
}


@functools.cache
def exact_with_derivatives(case):
    """In float64, with all scores at once."""
    options, is_valid = CASES[case]
    with jax.enable_x64(True):
        return with_derivatives(
            functools.partial(attend_at_once, **options),
            [np.asarray(x, np.float64) for x in qkv()],
            is_valid,
        )


@pytest.mark.parametrize("case", CASES)
def test_softmax_attention_in_blocks_is_that_at_once(case, cut_into_three_blocks):
    """So are its derivatives, beside float64."""
    options, is_valid = CASES[case]
    actual = with_derivatives(functools.partial(SOFTMAX, **options), qkv(), is_valid)
    for array, expected in zip(actual, exact_with_derivatives(case), strict=True):
        assert relative_error(array, expected) <= TOLERANCE["float32"]


def test_softmax_attention_in_blocks_drops_other_weights_in_each_block(
    cut_into_three_blocks,
):
    query, key, value = qkv()
    attend = functools.partial(SOFTMAX, dropout_rate=0.5, deterministic=False)
    out = jax.jit(attend)(
        0 * query, 0 * key, jnp.ones_like(value), dropout_rng=jax.random.key(0)
    )
    kept_shares = np.asarray(out)[0, :, 0, 0]  # Of the weights of each query.
    assert abs(kept_shares.mean() - 1) < 5 / L
    first_block = kept_shares[:BLOCK]
    second_block = kept_shares[BLOCK : 2 * BLOCK]
    assert (first_block != second_block).mean() > 0.8


def test_softmax_attention_in_blocks_sums_gradients_of_bfloat16_in_float32(monkeypatch):
    """The gradients of keys and values are sums over 32 blocks."""

    def gradients(inputs):
        def total(query, key, value):
            return SOFTMAX(query, key, value).astype(jnp.float32).sum()

        return jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*inputs)

    shape = (1, 32 * 8, N, H)
    inputs = [jnp.asarray(normal(seed, *shape), jnp.bfloat16) for seed in range(3)]
    exact = gradients([x.astype(jnp.float32) for x in inputs])
    at_once = gradients(inputs)
    monkeypatch.setattr(softmax_groups, "CPU_BLOCK", 8)
    in_blocks = gradients(inputs)
    for i in range(3):
        error_at_once = relative_error(at_once[i], exact[i])
        assert relative_error(in_blocks[i], exact[i]) <= 1.2 * error_at_once


@pytest.mark.parametrize("num_rows", [1, 2, 7])
@pytest.mark.parametrize("group_size", [1, 3, None])
def test_map_rows_shares_single_rows_and_none(num_rows, group_size):
    def function(arrays):
        row, shared, missing = arrays
        assert missing is None
        return row + shared

    rows = jnp.arange(2.0 * num_rows).reshape(num_rows, 2)
    out = map_rows(
        function,
        (rows, jnp.array([[10.0, 20.0]]), None),
        num_rows=num_rows,
        group_size=group_size,
    )
    np.testing.assert_array_equal(out, rows + np.array([[10.0, 20.0]]))


def test_choose_group_sizes_keeps_scores_in_the_cache_of_a_cpu(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    # Two sequences, or four heads, of 128 x 1,024 scores fit.
    sizes = choose_group_sizes((32, 1024, 2, 64), num_keys=1024)
    assert sizes == (2, 4, 128)
    sizes = choose_group_sizes((32, 2**20, 2, 64), num_keys=2**20)
    assert sizes == (1, 1, 1)
    # So they do in cross attention of few queries to many keys.
    sizes = choose_group_sizes((32, 256, 2, 64), num_keys=2**20)
    assert sizes == (1, 1, 1)
    sizes = choose_group_sizes((32, 256, 2, 64), num_keys=2**11)
    assert sizes == (1, 1, 256)
    sizes = choose_group_sizes((32, 256, 2, 64), num_keys=2**11 + 1)
    assert sizes == (1, 1, 128)


def test_choose_group_sizes_takes_a_sharded_batch_at_once(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    sizes = choose_group_sizes((32, 1024, 2, 64), num_keys=1024)
    assert sizes.sequences is None


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
    monkeypatch.setattr(softmax_groups, "CPU_BLOCK", 1024)
    monkeypatch.setattr(softmax_groups, "CPU_SCORES", 1024**2)
    at_once = temporary_bytes()
    assert in_blocks < at_once / 4


def test_choose_group_sizes_limits_the_scores_of_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # 64 heads of 256 × 8,192 scores are 2²⁷.
    sizes = choose_group_sizes((32, 8192, 2, 64), num_keys=8192)
    assert sizes == (None, None, 256)
    sizes = choose_group_sizes((32, 2**24, 2, 64), num_keys=2**24)
    assert sizes.queries == 1
