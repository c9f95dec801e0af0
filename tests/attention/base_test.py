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
QUERY = np.ones((B, T, N, H))
KEY = np.ones((B, S, N, H))
ONE_HEAD = QUERY[:, :, :1]
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)


X = normal(1, *PADDING.shape, 10).astype(np.float32)


def nnx_layer(attention, decode=False):
    """A layer of flax for x [B, L, 10], with two heads."""
    return nnx.MultiHeadAttention(
        2, 10, attention_fn=attention, decode=decode, rngs=nnx.Rngs(0)
    )


class Weighted(Attention):
    """Its output shows what each head of each sequence was called with."""

    def per_head(self, length):
        return (jnp.arange(N) + length,)

    def attend(self, query, key, value, mask, precision, number):
        assert query.dtype == key.dtype == value.dtype
        count = len(key) if mask is None else mask.sum()
        position = jax.lax.axis_index("batch") + 2 * jax.lax.axis_index("heads")
        extra = number + 100 * count + (7 if precision == "high" else 0) + position
        return query + (2 * key + 3 * value).sum(0)[None] + extra.astype(query.dtype)


def attend_weighted(query=QUERY, key=KEY, value=KEY, **options):
    attention = Weighted(num_heads=N, head_dim=H, max_length=S, rngs=nnx.Rngs(0))
    return attention(
        jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), **options
    )


def test_attention_maps_one_head_with_its_own_arrays():
    query = normal(0, B, T, N, H)
    key = normal(1, B, S, N, H)
    value = normal(2, B, S, N, H)
    out = attend_weighted(query, key, value, mask=MASK[:, None, None], precision="high")

    valid_sums = ((2 * key + 3 * value) * MASK[:, :, None, None]).sum(1, keepdims=True)
    head = np.arange(N)
    row_of_head = head + S
    position = np.arange(B)[:, None] + 2 * head
    number = row_of_head + 100 * MASK.sum(1)[:, None] + 7 + position  # [B, N]
    expected = query + valid_sums + number[:, None, :, None]
    assert relative_error(out, expected) <= TOLERANCE["same"]


def test_attention_has_the_dtype_asked_for_and_no_dropout_if_deterministic():
    out = attend_weighted(dtype="bfloat16", dropout_rate=0.3, deterministic=True)
    assert out.dtype == "bfloat16"


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
    "heads": ({"query": ONE_HEAD}, r"\(2, 3, 1, 11\)"),
    "all heads": (
        {"query": ONE_HEAD, "key": ONE_HEAD, "value": ONE_HEAD},
        r"\(7, 11\), got \(2, 3",
    ),
    "length of values": ({"value": QUERY}, r"\(2, 3, 7, 11\)$"),
    "no batch": ({"query": QUERY[0]}, r"\(3, 7, 11\): add a batch axis.*x\[None\]"),
    "no keys": ({"key": KEY[:, :0], "value": KEY[:, :0]}, r"one key.*\(2, 0, 7, 11\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_attention_rejects_arguments_it_cannot_honour(case):
    arguments, text = REFUSED[case]
    with pytest.raises(ValueError, match=text):
        attend_weighted(**arguments)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_rejects_sizes_that_it_was_not_made_for(name):
    three_heads = jnp.ones((2, 64, 3, 5))
    with pytest.raises(ValueError, match=r"made for \[N, H\] = .*\(2, 64, 3, 5\)"):
        make(name)(three_heads, three_heads, three_heads)


def test_self_attention_rejects_unequal_lengths():
    query = jnp.ones((3, 67, 2, 5))
    key = jnp.ones((3, 61, 2, 5))
    with pytest.raises(ValueError, match=r"T = S.*\(3, 67, 2, 5\).*\(3, 61, 2, 5\)"):
        make("identity")(query, key, key)


CROSS = [name for name, cls in ATTENTIONS.items() if not cls.self_attention_only]


def make_cross(name):
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
    attend = jax.jit(make_cross(name))
    out = attend(query, key, value, mask=keys_seen[:, None, None])
    for b in (0, 1):
        # Without a mask, and mostly with T ≠ S.
        mask = keys_seen[b]
        alone = attend(query[b : b + 1], key[b : b + 1, mask], value[b : b + 1, mask])
        assert relative_error(out[b], alone[0]) <= TOLERANCE["float32"]


@pytest.mark.parametrize("length", [13, 12])
def test_softmax_attention_is_that_of_flax_in_cross_attention(length):
    """With as many queries as keys, and with one less."""
    queries = X[:, :length]
    keys = X[:, 20:33]
    mask = np.arange(13) < np.array([13, 5, 1])[:, None, None, None]
    layer = nnx.jit(nnx_layer(make("softmax")))
    flax_layer = nnx.jit(nnx_layer(nnx.dot_product_attention))
    out = layer(queries, keys, mask=mask)
    expected = flax_layer(queries, keys, mask=mask)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


def decode_with_flax(attention):
    """The outputs of three steps of flax's own decoding."""
    layer = nnx_layer(attention, decode=True)
    layer.init_cache((3, 4, 10))
    decode = nnx.jit(lambda layer, x: layer(x))
    return np.stack([decode(layer, X[:, t : t + 1]) for t in range(3)])


def test_flax_decodes_with_softmax_attention_where_its_mask_is_cast():
    softmax = make("softmax")

    def attend(query, key, value, mask, **options):
        return softmax(query, key, value, mask=mask.astype(bool), **options)

    expected = decode_with_flax(nnx.dot_product_attention)
    assert relative_error(decode_with_flax(attend), expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", ["softmax", "nystrom"])
def test_attention_rejects_the_mask_of_floats_of_a_flax_decoder(name):
    with pytest.raises(ValueError, match=r"got float32; .*decode=True.*floats"):
        decode_with_flax(make(name))


def test_make_attention_rejects_cross_attention():
    with pytest.raises(ValueError, match=r"Identity.* has no cross attention"):
        make("identity", cross_attention=True)


def test_convolution_of_v_rejects_cross_attention():
    attention = make("nystrom", cross_attention=True, conv_kernel_size=5)
    with pytest.raises(ValueError, match=r"convolution of V needs self-attention"):
        jax.eval_shape(attention, *inputs())


DROP_INS = {
    "nystrom": make("nystrom", num_landmarks=7),
    "nystrom_attention": nystrom_attention,
    "softmax": make("softmax"),
}


def check_drop_in(attend):
    """attend(x [B, L, D], mask) with garbage in padding, with and without the mask."""
    garbage = np.where(PADDING[:, :, None], X, 3e3).astype(np.float32)
    mask = PADDING[:, None, None]
    clean_out = attend(X, mask)
    assert clean_out.shape == X.shape
    garbage_out = attend(garbage, mask)
    error = relative_error(garbage_out[PADDING], clean_out[PADDING])
    assert error <= TOLERANCE["same"]
    unmasked_out = attend(garbage, None)
    assert relative_error(unmasked_out[PADDING], clean_out[PADDING]) > 0.01


@pytest.mark.parametrize("attention", [*DROP_INS.values(), make("nystrom")])
def test_attention_drops_into_flax_nnx(attention):
    layer = nnx_layer(attention)
    has_kernel = getattr(attention, "conv_kernel_size", 0) > 0
    is_trained = "attention_fn" in nnx.state(layer, nnx.Param)
    assert is_trained == has_kernel
    graphdef, state = nnx.split(layer)
    check_drop_in(jax.jit(lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask)))


@pytest.mark.parametrize(
    "name", ["num_landmark", "is_casual", "head_dim", "conv_kernel_size"]
)
def test_nystrom_attention_rejects_an_unknown_keyword(name):
    with pytest.raises(TypeError, match=name):
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
        jax.eval_shape(layer.init, jax.random.key(0), X)
    x = jnp.ones((1, 11, 2, 5))
    out = jax.eval_shape(attention, x, x, x)
    assert out.shape == x.shape  # outside of linen it works


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_queries_of_padding_become_zero_where_they_are_not_ordinary(dtype):
    """In float16, too, whose largest number is 65,504."""
    query = jnp.asarray([1.0, jnp.nan, jnp.inf, 3.0], dtype)[None, :, None, None]
    mask = jnp.array([[True, False, False, False]])
    zeroed_query, _, _ = make("softmax").zero_padding(query, query, query, mask)
    np.testing.assert_array_equal(zeroed_query.ravel(), [1, 0, 0, 3])
