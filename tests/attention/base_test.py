"""The one signature: what a mask may say, what is refused, and cross-attention."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.attention.base import Attention
from nystromformer.attention.nystrom import nystrom_attention
from tests.attention.cases import MASK as PADDING
from tests.attention.cases import (
    OPTIONS,
    make,
    normal,
    random_qkv,
    skip_without_float16,
)
from tests.tolerance import TOLERANCE, relative_error

# Batch, queries, keys, heads and the size of a head.
B = 2
T = 3
S = 5
N = 7
H = 11
QUERY = np.ones((B, T, N, H))
KEY = np.ones((B, S, N, H))
ONE_HEAD = QUERY[:, :, :1]
MASK = np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)


def call_code(head, array_of_head, example, num_keys, is_high_precision):
    """A number that changes when any one of these changes."""
    return array_of_head + 2 * head + example + 100 * num_keys + 7 * is_high_precision


class CallRecorder(Attention):
    """Its output shows what each head of each sequence was called with."""

    def per_head(self, length):
        return (jnp.arange(N) + length,)

    def attend(self, query, key, value, mask, precision, array_of_head):
        assert query.dtype == key.dtype == value.dtype
        code = call_code(
            head=jax.lax.axis_index("heads"),
            array_of_head=array_of_head,
            example=jax.lax.axis_index("batch"),
            num_keys=len(key) if mask is None else mask.sum(),
            is_high_precision=precision == "high",
        )
        sums = (2 * key + 3 * value).sum(0)
        return query + sums[None] + code.astype(query.dtype)


class ListKeeper(CallRecorder):
    """It keeps what its option is, and a user's own is often a list."""

    def __init__(self, *, sizes=(1, 2), **common):
        super().__init__(**common)
        self.sizes = sizes


@pytest.mark.parametrize(
    "sizes", [[1, 2], (1, [2]), {"first": 1}, nnx.Dict(inner=nnx.static([1, 2]))]
)
def test_an_attribute_that_cannot_be_hashed_is_named(sizes):
    attention = ListKeeper(
        sizes=sizes, num_heads=N, head_dim=H, max_length=S, rngs=nnx.Rngs(0)
    )
    query = jnp.asarray(QUERY)
    key = jnp.asarray(KEY)
    with pytest.raises(ValueError, match=r"'(sizes|inner)' of ListKeeper .*a tuple"):
        attention(query, key, key)
    attention.sizes = (1, 2)
    attention(query, key, key)


def attend_and_record(query=QUERY, key=KEY, value=KEY, **options):
    attention = CallRecorder(num_heads=N, head_dim=H, max_length=S, rngs=nnx.Rngs(0))
    return attention(
        jnp.asarray(query), jnp.asarray(key), jnp.asarray(value), **options
    )


def test_attention_maps_one_head_with_its_own_arrays():
    query = normal(0, B, T, N, H)
    key = normal(1, B, S, N, H)
    value = normal(2, B, S, N, H)
    out = attend_and_record(
        query, key, value, mask=MASK[:, None, None], precision="high"
    )

    is_valid = MASK[:, :, None, None]
    valid_sums = ((2 * key + 3 * value) * is_valid).sum(1, keepdims=True)
    code = call_code(
        head=np.arange(N),
        array_of_head=np.arange(N) + S,
        example=np.arange(B)[:, None],
        num_keys=MASK.sum(1)[:, None],
        is_high_precision=True,
    )  # [B, N]
    expected = query + valid_sums + code[:, None, :, None]
    assert relative_error(out, expected) <= TOLERANCE["same"]


def test_attention_has_the_dtype_asked_for_and_no_dropout_if_deterministic():
    out = attend_and_record(dtype="bfloat16", dropout_rate=0.3, deterministic=True)
    assert out.dtype == "bfloat16"


def ones(*shape):
    return np.ones(shape, bool)


# Arguments, and what the message says of them.
REFUSED = {
    "mask [B, S]": ({"mask": ones(B, S)}, r"\(2, 5\)"),
    "mask over queries": (
        {"mask": ones(B, 1, T, S)},
        r"\[B, 1, 1, S\], got \(2, 1, 3, 5\): .*valid\[:, None.*causal.*softmax",
    ),
    "mask over heads": ({"mask": ones(B, N, 1, S)}, r"one mask .*\(2, 7, 1, 5\)"),
    "mask of 5 axes": ({"mask": ones(1, B, 1, 1, S)}, r"1, 2, 1, 1, 5\)"),
    "mask of numbers": (
        {"mask": np.ones((B, 1, 1, S), np.float32)},
        "float32.*=bool",
    ),
    "bias": ({"bias": np.ones((1, 1, T, S))}, r"bias.*\(1, 1, 3, 5\).*CallRecorder"),
    "boolean bias": ({"bias": ones(B, 1, 1, S)}, r"bool.*\(2, 1, 1, 5\).*mask=mask"),
    "causal": ({"is_causal": True}, r"is_causal.*\(2, 3, 7, 11\)"),
    "dropout": (
        {"dropout_rate": 0.3},
        r"dropout_rate=0.3 .*use dropout_rate=0, and nnx\.Dropout on the output",
    ),
    "sowing": ({"module": nnx.Dict()}, "sow_weights"),
    "batch": ({"query": np.ones((B + 1, T, N, H))}, r"\(3, 3, 7, 11\)"),
    "heads": ({"query": ONE_HEAD}, r"\(2, 3, 1, 11\)"),
    "heads of keys": (
        {"key": KEY[:, :, :1], "value": KEY[:, :, :1]},
        r"query has 7 heads and key 1: .*jnp\.repeat\(key",
    ),
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
        attend_and_record(**arguments)


@pytest.mark.parametrize("name", ["softmax", "nystrom"])
def test_attention_of_integers_needs_a_dtype(name):
    """Without one the output would be rounded to integers."""
    integers = [jnp.asarray(x, jnp.int32) for x in random_qkv()]
    attend = jax.jit(make(name))
    with pytest.raises(ValueError, match="must be floating-point numbers, got int32"):
        attend(*integers)
    attend = jax.jit(
        partial(make(name), dtype=jnp.float32, mask=PADDING[:, None, None])
    )
    expected = attend(*[x.astype(jnp.float32) for x in integers])
    assert relative_error(attend(*integers), expected) <= TOLERANCE["same"]


@pytest.mark.parametrize("name", ["softmax", "nystrom"])
def test_queries_of_padding_that_overflow_in_the_dtype_change_no_gradient(name):
    skip_without_float16()
    query, key, value = random_qkv()
    is_valid = PADDING[:, :, None, None]
    attention = make(name)

    def total(query):
        mask = PADDING[:, None, None]
        out = attention(query, key, value, mask=mask, dtype=jnp.float16)
        return jnp.where(is_valid, out, 0).astype(jnp.float32).sum()

    gradient = jax.jit(jax.grad(total))
    expected = gradient(jnp.where(is_valid, query, 0))
    overflowing = gradient(jnp.where(is_valid, query, 1e5))
    # Both are of one program, in which padding adds nothing but zeros.
    np.testing.assert_array_equal(overflowing, expected)


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


CROSS = [name for name in ATTENTIONS if not find_attention(name).self_attention_only]


def make_cross(name, **sizes):
    """That attention, with its options, for queries of other tokens than the keys."""
    options = dict(OPTIONS.get(name, {}))
    options.pop("conv_kernel_size", None)  # A convolution needs self-attention.
    if name == "nystrom_attention":
        return partial(nystrom_attention, num_landmarks=7)
    return make(name, **sizes, **options)


@pytest.mark.parametrize("name", ["nystrom_attention", *CROSS])
def test_cross_attention_applies_the_mask_to_keys_alone(name):
    """Here T = S."""
    query, key, value = random_qkv()
    keys_seen = PADDING & (np.arange(PADDING.shape[1]) < 60)
    attend = jax.jit(partial(make_cross(name), query_mask=True))
    out = attend(query, key, value, mask=keys_seen[:, None, None])
    for b in (0, 1):
        # Without a mask, and mostly with T ≠ S.
        example = slice(b, b + 1)
        valid_key = key[example, keys_seen[b]]
        valid_value = value[example, keys_seen[b]]
        expected = attend(query[example], valid_key, valid_value)
        assert relative_error(out[example], expected) <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_takes_values_of_another_number_of_features(name):
    query, key, value = random_qkv()
    attend = jax.jit(partial(make(name), mask=PADDING[:, None, None]))

    def add_features(x):
        """[…, H] and −2 times its first two, as in […, H + 2]."""
        return np.concatenate([x, -2 * x[..., :2]], axis=-1)

    expected = add_features(attend(query, key, value))
    out = attend(query, key, add_features(value))
    assert relative_error(out[PADDING], expected[PADDING]) <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", ["nystrom_attention", *CROSS])
def test_cross_attention_means_the_same_with_as_many_keys_as_queries_and_with_more(
    name,
):
    """Some queries are padding; a masked key more makes T < S, and T = S without."""
    attend = jax.jit(make_cross(name, max_length=68))
    query, key, value = random_qkv()
    queries_seen = PADDING
    keys_seen = np.tile(np.arange(PADDING.shape[1]) < 16, (len(PADDING), 1))
    query = jnp.where(queries_seen[:, :, None, None], query, np.nan)
    query_mask = queries_seen[:, None, None]

    def one_more(x):
        return np.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2))

    def attend_with(key, value, keys_seen):
        mask = keys_seen[:, None, None]
        return attend(query, key, value, mask=mask, query_mask=query_mask)

    out = attend_with(key, value, keys_seen)
    with_more = attend_with(one_more(key), one_more(value), one_more(keys_seen))
    error = relative_error(with_more[queries_seen], out[queries_seen])
    assert error <= TOLERANCE["float32"]


@pytest.mark.parametrize("name", ["nystrom_attention", *CROSS])
def test_queries_of_padding_change_nothing_however_few_the_others_are(name):
    """They are five, and landmarks seven."""
    attend = jax.jit(make_cross(name))
    query, key, value = random_qkv()
    mask = PADDING[:, None, None]
    counts = np.arange(PADDING.shape[1]) % 13 == 3
    alone = attend(query[:, counts], key, value, mask=mask, query_mask=True)
    with_nan = jnp.where(counts[:, None, None], query, np.nan)
    padded = attend(with_nan, key, value, mask=mask, query_mask=counts)
    assert relative_error(padded[:, counts], alone) <= TOLERANCE["float32"]


def test_cross_attention_without_a_query_mask_is_taken_for_self_attention():
    """Where T = S; the masked keys' places are then masked queries, too."""
    query, key, value = random_qkv()
    keys_seen = (np.arange(key.shape[1]) < 16)[None, None, None]
    attend = jax.jit(make_cross("nystrom"))
    self_attention = attend(query, key, value, mask=keys_seen)
    same = attend(query, key, value, mask=keys_seen, query_mask=keys_seen)
    cross_attention = attend(query, key, value, mask=keys_seen, query_mask=True)
    assert relative_error(same, self_attention) <= TOLERANCE["float32"]
    assert relative_error(cross_attention, self_attention) > 0.01


def test_self_attention_rejects_a_query_mask():
    message = "IdentityAttention is self-attention.*give no query_mask"
    with pytest.raises(ValueError, match=message):
        make("identity")(*random_qkv(), query_mask=True)


def test_convolution_of_v_rejects_cross_attention():
    query, key, value = random_qkv()
    with pytest.raises(ValueError, match="convolution of V needs self-attention"):
        make("nystrom")(query, key, value, query_mask=True)
    with pytest.raises(ValueError, match=r"T = S.*\(3, 61, 2, 5\) and \(3, 67, 2, 5\)"):
        make("nystrom")(query[:, :61], key, value)


@pytest.mark.parametrize(
    ("query_mask", "text"),
    [
        (np.ones((3, 67), bool), r"pass query_mask\[:, None, None, :\]"),
        (np.ones((3, 1, 1, 67)), "query_mask must be boolean"),
        (np.ones((3, 1, 67, 67), bool), "query_mask of shape .* does not broadcast"),
        # It has its four axes already, and one token too many.
        (np.ones((3, 1, 1, 68), bool), r"does not broadcast to \(3, 1, 1, 67\)$"),
    ],
)
def test_attention_rejects_a_query_mask_that_does_not_fit(query_mask, text):
    with pytest.raises(ValueError, match=text):
        make("linear")(*random_qkv(), query_mask=query_mask)


@pytest.mark.parametrize(
    "name", ["num_landmark", "is_casual", "head_dim", "conv_kernel_size"]
)
def test_nystrom_attention_rejects_an_unknown_keyword(name):
    with pytest.raises(TypeError, match=name):
        nystrom_attention(*random_qkv(), **{name: 35})
