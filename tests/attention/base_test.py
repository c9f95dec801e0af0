"""The one signature: what a mask may say, what is refused, where flax calls from."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.base import Attention, key_mask
from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.attention.softmax import softmax_attention
from tests.attention.cases import MASK as PADDING
from tests.attention.cases import OPTIONS, inputs, make, normal
from tests.tolerance import TOLERANCE, relative_error

B, T, S, N, H = 2, 3, 5, 7, 11
QUERY, KEY = np.ones((B, T, N, H)), np.ones((B, S, N, H))
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)


class Weighted(Attention):
    """Tells what each head of each sequence was given."""

    def per_head(self, length):
        return (jnp.arange(N) + length,)

    def attend(self, query, key, value, mask, precision, number):
        assert query.dtype == key.dtype == value.dtype
        count = len(key) if mask is None else mask.sum()
        position = jax.lax.axis_index("batch") + 2 * jax.lax.axis_index("heads")
        extra = number + 100 * count + (7 if precision == "high" else 0) + position
        return query + (2 * key + 3 * value).sum(0)[None] + extra.astype(query.dtype)


def attended(query=QUERY, key=KEY, value=KEY, **given):
    attention = Weighted(num_heads=N, head_dim=H, max_length=S, rngs=nnx.Rngs(0))
    return attention(*map(jnp.asarray, (query, key, value)), **given)


def test_every_head_of_every_sequence_is_lifted_with_what_is_its_own():
    query, key, value = (normal(i, B, n, N, H) for i, n in enumerate((T, S, S)))
    out = attended(query, key, value, mask=MASK[:, None, None], precision="high")
    sums = ((2 * key + 3 * value) * MASK[:, :, None, None]).sum(1, keepdims=True)
    number = np.arange(N) + S + 7 + 100 * MASK.sum(1)[:, None]
    number = number + np.arange(B)[:, None] + 2 * np.arange(N)
    expected = query + sums + number[:, None, :, None]
    assert relative_error(out, expected) <= TOLERANCE["same"]
    assert attended(dtype="bfloat16", dropout_rate=0.3).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (MASK[:, None, None, :], MASK),
        (MASK[0], [MASK[0], MASK[0]]),
        (MASK[:1, None, None, :], [MASK[0], MASK[0]]),
        (np.array([True, False])[:, None, None, None], [[True] * S, [False] * S]),
        (np.array(False), [[False] * S] * B),
    ],
    ids=["[B,1,1,S]", "[S]", "[1,1,1,S]", "[B,1,1,1]", "[]"],
)
def test_what_broadcasts_becomes_a_mask_of_keys(mask, expected):
    np.testing.assert_array_equal(key_mask(mask, B, S), expected)


REFUSED = {
    "mask [B, S]": ({"mask": np.ones((B, S), bool)}, r"\(2, 5\)"),
    "mask over queries": ({"mask": np.ones((B, 1, T, S), bool)}, r"\(2, 1, 3, 5\)"),
    "mask over heads": ({"mask": np.ones((B, N, 1, S), bool)}, r"\(2, 7, 1, 5\)"),
    "mask of queries": ({"mask": np.ones((1, 1, 1, T), bool)}, r"\(1, 1, 1, 3\)"),
    "mask of 5 axes": ({"mask": np.ones((1, B, 1, 1, S), bool)}, r"1, 2, 1, 1, 5\)"),
    "mask of numbers": ({"mask": np.ones((B, 1, 1, S), np.float32)}, "float32"),
    "bias": ({"bias": np.ones((1, 1, T, S))}, r"bias.*\(1, 1, 3, 5\).*Weighted"),
    "causal": ({"is_causal": True}, r"is_causal.*\(2, 3, 7, 11\)"),
    "dropout": ({"dropout_rate": 0.3, "deterministic": False}, "dropout_rate=0.3"),
    "sowing": ({"module": nnx.Dict()}, "sow_weights"),
    "no batch": ({"query": QUERY[0]}, r"\(3, 7, 11\)"),
    "batch": ({"query": np.ones((B + 1, T, N, H))}, r"\(3, 3, 7, 11\)"),
    "heads": ({"query": QUERY[:, :, :1]}, r"\(2, 3, 1, 11\)"),
    "head dim": ({"query": QUERY[..., :1]}, r"\(2, 3, 7, 1\)"),
    "length of values": ({"value": QUERY}, r"\(2, 3, 7, 11\)$"),
    "heads of values": ({"value": KEY[:, :, :1]}, r"\(2, 5, 1, 11\)$"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_honoured_is_refused_with_its_shape(case):
    given, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        attended(**given)


@pytest.mark.parametrize("name", ["longformer", "identity"])
def test_self_attention_needs_equal_lengths(name):
    with pytest.raises(ValueError, match=r"T = S.*\(3, 67, 2, 5\).*\(3, 61, 2, 5\)"):
        make(name)(jnp.ones((3, 67, 2, 5)), *[jnp.ones((3, 61, 2, 5))] * 2)


OF_NYSTROM = {"num_landmarks": 7, "cross_attention": True}
CROSS = {
    name: partial(make, name, **{**OPTIONS.get(name, {}), "cross_attention": True})
    for name, x in ATTENTIONS.items()
    if not x.self_attention_only
} | {
    "nystrom": partial(make, "nystrom", **OF_NYSTROM),
    "nystrom_attention": lambda: partial(nystrom_attention, **OF_NYSTROM),
    "softmax_attention": lambda: partial(softmax_attention, cross_attention=True),
}


@pytest.mark.parametrize("name", CROSS)
def test_a_mask_of_keys_says_nothing_of_queries_in_cross_attention(name):
    query, key, value = inputs()
    attend = CROSS[name]()
    out = attend(query, key, value, mask=PADDING[:, None, None])
    for b, mask in enumerate(PADDING):  # T ≠ S, or without a mask
        alone = attend(query[b : b + 1], key[b : b + 1, mask], value[b : b + 1, mask])
        assert relative_error(out[b], alone[0]) <= TOLERANCE["float32"]


def test_what_has_no_cross_attention_says_so():
    with pytest.raises(ValueError, match="identity has no cross attention"):
        make("identity", cross_attention=True)
    with pytest.raises(ValueError, match=r"convolution of V needs self-attention"):
        make("nystrom", cross_attention=True, conv_kernel_size=5)(*inputs())


DROP_INS = {
    "without parameters": make("nystrom", num_landmarks=7),
    "nystrom_attention": nystrom_attention,
    "softmax_attention": softmax_attention,
    "nystrom": make("nystrom"),
    "softmax": make("softmax"),
}
X = normal(1, *PADDING.shape, 10).astype(np.float32)


def check_drop_in(attend):
    """attend(x [B, L, D], mask) with garbage in padding, with and without the mask."""
    dirty = np.where(PADDING[:, :, None], X, 3e3).astype(np.float32)
    clean, moved = (attend(x, PADDING[:, None, None]) for x in (X, dirty))
    assert clean.shape == X.shape
    assert relative_error(moved[PADDING], clean[PADDING]) <= TOLERANCE["same"]
    assert relative_error(attend(dirty, None)[PADDING], clean[PADDING]) > 0.01


@pytest.mark.parametrize("name", ["nystrom", "nystrom_attention", "softmax"])
def test_drops_into_flax_nnx(name):
    layer = nnx.MultiHeadAttention(
        2, 10, attention_fn=DROP_INS[name], decode=False, rngs=nnx.Rngs(0)
    )
    params = nnx.state(layer, nnx.Param)
    assert ("attention_fn" in params) == (name == "nystrom")  # trained with the rest
    graphdef, state = nnx.split(layer)
    by_jax = jax.jit(lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask))
    check_drop_in(by_jax)
    with nnx.set_graph_mode(False):
        call = nnx.jit(
            lambda layer, x: layer(x, mask=jnp.asarray(PADDING[:, None, None]))
        )
        compiled = call(layer, X)
    other = by_jax(X, PADDING[:, None, None])
    assert relative_error(compiled[PADDING], other[PADDING]) <= TOLERANCE["float32"]


class Linen(linen.Module):
    """A layer of somebody's own."""

    attention: Attention

    @linen.compact
    def __call__(self, x):
        return self.attention(x, x, x)


def in_linen(attention):
    layer = linen.MultiHeadDotProductAttention(2, attention_fn=attention)
    params = jax.jit(layer.init)(jax.random.key(0), X)
    return jax.jit(lambda x, mask: layer.apply(params, x, mask=mask))


@pytest.mark.parametrize("name", sorted({*DROP_INS} - {"nystrom"}))
def test_drops_into_flax_linen(name):
    check_drop_in(in_linen(DROP_INS[name]))


def test_with_parameters_linen_would_freeze_them_and_so_is_refused():
    with pytest.raises(ValueError, match=r"10 parameters.*MultiHeadDotP.*nnx"):
        in_linen(DROP_INS["nystrom"])
    x = jnp.ones((1, 11, 2, 5))
    layer = Linen(make("linformer", projection_dim=7, max_length=11))
    with pytest.raises(ValueError, match="77 parameters, which linen's Linen"):
        layer.init(jax.random.key(0), x)
    assert DROP_INS["nystrom"](x, x, x).shape == x.shape  # outside all is well


def test_in_a_model_of_nnx_linen_trains_them():
    x = jnp.ones((1, 11, 2, 5))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.attention = make("nystrom")

        def __call__(self, x):
            return self.attention(x, x, x)

    bridge = nnx.bridge.to_linen(Model)
    variables = bridge.init(jax.random.key(0), x)
    assert variables["params"]["attention"]["conv_kernel"].shape == (5, 2)
    assert bridge.apply(variables, x).shape == x.shape
