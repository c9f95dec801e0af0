"""The one signature: what a mask may say, what is refused, where flax calls from."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.base import Attention
from nystromformer.attention.inputs import key_mask
from nystromformer.attention.nystrom import nystrom_attention
from tests.attention.cases import MASK as PADDING
from tests.attention.cases import OPTIONS, inputs, make, normal
from tests.tolerance import TOLERANCE, relative_error

B, T, S, N, H = 2, 3, 5, 7, 11
QUERY, KEY = np.ones((B, T, N, H)), np.ones((B, S, N, H))
ONE = QUERY[:, :, :1]
UNKNOWN = "num_landmark", "is_casual", "head_dim", "conv_kernel_size"
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


def test_attention_lifts_one_head_with_its_own_arrays():
    query, key, value = (normal(i, B, n, N, H) for i, n in enumerate((T, S, S)))
    out = attended(query, key, value, mask=MASK[:, None, None], precision="high")
    sums = ((2 * key + 3 * value) * MASK[:, :, None, None]).sum(1, keepdims=True)
    number = np.arange(N) + S + 7 + 100 * MASK.sum(1)[:, None]
    number = number + np.arange(B)[:, None] + 2 * np.arange(N)
    expected = query + sums + number[:, None, :, None]
    assert relative_error(out, expected) <= TOLERANCE["same"]
    silent = {"dropout_rate": 0.3, "deterministic": True}
    assert attended(dtype="bfloat16", **silent).dtype == "bfloat16"


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
def test_key_mask_broadcasts(mask, expected):
    np.testing.assert_array_equal(key_mask(mask, B, S), expected)


REFUSED = {
    "mask [B, S]": ({"mask": np.ones((B, S), bool)}, r"\(2, 5\)"),
    "mask over queries": ({"mask": np.ones((B, 1, T, S), bool)}, r"\(2, 1, 3, 5\)"),
    "mask over heads": ({"mask": np.ones((B, N, 1, S), bool)}, r"\(2, 7, 1, 5\)"),
    "mask of 5 axes": ({"mask": np.ones((1, B, 1, 1, S), bool)}, r"1, 2, 1, 1, 5\)"),
    "mask of numbers": ({"mask": np.ones((B, 1, 1, S), np.float32)}, "float32.*=bool"),
    "bias": ({"bias": np.ones((1, 1, T, S))}, r"bias.*\(1, 1, 3, 5\).*Weighted"),
    "causal": ({"is_causal": True}, r"is_causal.*\(2, 3, 7, 11\)"),
    "dropout": ({"dropout_rate": 0.3}, "dropout_rate=0.3"),
    "sowing": ({"module": nnx.Dict()}, "sow_weights"),
    "batch": ({"query": np.ones((B + 1, T, N, H))}, r"\(3, 3, 7, 11\)"),
    "heads": ({"query": ONE}, r"\(2, 3, 1, 11\)"),
    "all heads": ({"query": ONE, "key": ONE, "value": ONE}, r"\(7, 11\), got \(2, 3"),
    "length of values": ({"value": QUERY}, r"\(2, 3, 7, 11\)$"),
    "no batch": ({"query": QUERY[0]}, r"\(3, 7, 11\): add a batch axis.*x\[None\]"),
    "no keys": ({"key": KEY[:, :0], "value": KEY[:, :0]}, r"one key.*\(2, 0, 7, 11\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attention_rejects_arguments_it_cannot_honour(case):
    given, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        attended(**given)


def test_self_attention_rejects_unequal_lengths():
    x = [jnp.ones((3, n, 2, 5)) for n in (67, 61, 61)]
    with pytest.raises(ValueError, match=r"T = S.*\(3, 67, 2, 5\).*\(3, 61, 2, 5\)"):
        make("identity")(*x)


CROSS = [n for n, x in ATTENTIONS.items() if not x.self_attention_only]


def cross(name):
    """That attention, with its options, for queries of other tokens than the keys."""
    options = dict(OPTIONS.get(name, {}))
    options.pop("conv_kernel_size", None)  # needs self-attention
    if name == "nystrom_attention":
        return partial(nystrom_attention, num_landmarks=7, cross_attention=True)
    if name == "nystrom of all keys":  # which takes no landmarks of queries
        return make("nystrom", num_landmarks=60)
    return make(name, cross_attention=name == "nystrom", **options)


@pytest.mark.parametrize("name", ["nystrom_attention", "nystrom of all keys", *CROSS])
def test_cross_attention_applies_the_mask_to_keys_alone(name):
    """With T = S, and without a word where no landmarks of queries are taken."""
    query, key, value = inputs()
    keys_seen = PADDING & (np.arange(PADDING.shape[1]) < 60)
    attend = jax.jit(cross(name))
    out = attend(query, key, value, mask=keys_seen[:, None, None])
    for b, mask in enumerate(keys_seen):  # T ≠ S, or without a mask
        alone = attend(query[b : b + 1], key[b : b + 1, mask], value[b : b + 1, mask])
        assert relative_error(out[b], alone[0]) <= TOLERANCE["float32"]


@pytest.mark.parametrize("length", [13, 12])
def test_softmax_attention_is_that_of_flax_in_cross_attention(length):
    """With as many queries as keys, and with one less."""
    queries, keys = X[:, :length], X[:, 20:33]
    mask = np.arange(13) < np.array([13, 5, 1])[:, None, None, None]
    outputs = []
    for attend in (make("softmax"), nnx.dot_product_attention):
        options = {"attention_fn": attend, "decode": False, "rngs": nnx.Rngs(0)}
        layer = nnx.MultiHeadAttention(2, 10, **options)
        outputs.append(layer(queries, keys, mask=mask))
    assert relative_error(*outputs) <= TOLERANCE["float32"]


def test_flax_decodes_with_softmax_attention_where_its_mask_is_cast():
    softmax = make("softmax")

    def attend(*qkv, mask, **options):
        return softmax(*qkv, mask=mask.astype(bool), **options)

    def decoded(attend):
        options = {"attention_fn": attend, "decode": True, "rngs": nnx.Rngs(0)}
        layer = nnx.MultiHeadAttention(2, 10, **options)
        layer.init_cache((3, 4, 10))
        return np.stack([layer(X[:, t : t + 1]) for t in range(3)])

    own = decoded(nnx.dot_product_attention)
    assert relative_error(decoded(attend), own) <= TOLERANCE["float32"]
    for attention in (softmax, make("nystrom", num_landmarks=7)):
        with pytest.raises(ValueError, match=r"got float32; .*decode=True.*floats"):
            decoded(attention)


def test_make_attention_rejects_cross_attention():
    with pytest.raises(ValueError, match=r"Identity.* has no cross attention"):
        make("identity", cross_attention=True)
    with pytest.raises(ValueError, match=r"convolution of V needs self-attention"):
        make("nystrom", cross_attention=True, conv_kernel_size=5)(*inputs())


DROP_INS = {
    "nystrom": make("nystrom", num_landmarks=7),
    "nystrom_attention": nystrom_attention,
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


@pytest.mark.parametrize("attention", [*DROP_INS.values(), make("nystrom")])
def test_attention_drops_into_flax_nnx(attention):
    options = {"attention_fn": attention, "decode": False, "rngs": nnx.Rngs(0)}
    layer = nnx.MultiHeadAttention(2, 10, **options)
    has_kernel = getattr(attention, "conv_kernel_size", 0) > 0
    assert ("attention_fn" in nnx.state(layer, nnx.Param)) == has_kernel  # trained
    graphdef, state = nnx.split(layer)
    check_drop_in(jax.jit(lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask)))


@pytest.mark.parametrize("name", UNKNOWN)
def test_nystrom_attention_rejects_an_unknown_keyword(name):
    with pytest.raises((TypeError, ValueError), match=name):
        nystrom_attention(*inputs(), **{name: 35})


@pytest.mark.parametrize("name", DROP_INS)
def test_attention_drops_into_flax_linen(name):
    layer = linen.MultiHeadDotProductAttention(2, attention_fn=DROP_INS[name])
    params = jax.jit(layer.init)(jax.random.key(0), X)
    check_drop_in(jax.jit(lambda x, mask: layer.apply(params, x, mask=mask)))


class Linen(linen.Module):
    """A linen layer with the kernel of a convolution of V."""

    @linen.compact
    def __call__(self, x):
        kernel = self.param("conv_kernel", linen.initializers.normal(), (5, 2))
        attend = partial(nystrom_attention, num_landmarks=7, conv_kernel=kernel)
        return linen.MultiHeadDotProductAttention(2, attention_fn=attend)(x)


def test_nystrom_attention_trains_its_convolution_in_linen():
    layer = Linen()
    params = jax.jit(layer.init)(jax.random.key(0), X)["params"]

    @jax.jit
    @jax.grad
    def gradient(params):
        return jnp.square(layer.apply({"params": params}, X)).sum()

    assert jnp.abs(gradient(params)["conv_kernel"]).min() > 0


def test_attention_with_parameters_is_refused_by_linen():
    attention = make("nystrom")
    layer = linen.MultiHeadDotProductAttention(2, attention_fn=attention)
    with pytest.raises(ValueError, match=r"10 parameters.*MultiHeadDotP.*nnx"):
        layer.init(jax.random.key(0), X)
    x = jnp.ones((1, 11, 2, 5))
    assert attention(x, x, x).shape == x.shape  # outside all is well
