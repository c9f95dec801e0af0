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
def test_key_mask_broadcasts(mask, expected):
    np.testing.assert_array_equal(key_mask(mask, B, S), expected)


REFUSED = {
    "mask [B, S]": ({"mask": np.ones((B, S), bool)}, r"\(2, 5\)"),
    "mask over queries": ({"mask": np.ones((B, 1, T, S), bool)}, r"\(2, 1, 3, 5\)"),
    "mask over heads": ({"mask": np.ones((B, N, 1, S), bool)}, r"\(2, 7, 1, 5\)"),
    "mask of 5 axes": ({"mask": np.ones((1, B, 1, 1, S), bool)}, r"1, 2, 1, 1, 5\)"),
    "mask of numbers": ({"mask": np.ones((B, 1, 1, S), np.float32)}, "float32"),
    "bias": ({"bias": np.ones((1, 1, T, S))}, r"bias.*\(1, 1, 3, 5\).*Weighted"),
    "causal": ({"is_causal": True}, r"is_causal.*\(2, 3, 7, 11\)"),
    "dropout": ({"dropout_rate": 0.3, "deterministic": False}, "dropout_rate=0.3"),
    "sowing": ({"module": nnx.Dict()}, "sow_weights"),
    "batch": ({"query": np.ones((B + 1, T, N, H))}, r"\(3, 3, 7, 11\)"),
    "heads": ({"query": ONE}, r"\(2, 3, 1, 11\)"),
    "all heads": ({"query": ONE, "key": ONE, "value": ONE}, r"\(7, 11\), got \(2, 3"),
    "length of values": ({"value": QUERY}, r"\(2, 3, 7, 11\)$"),
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


@pytest.mark.parametrize("name", ["nystrom_attention", *CROSS])
def test_cross_attention_applies_the_mask_to_keys_alone(name):
    query, key, value = inputs()
    options = dict(OPTIONS.get(name, {}))
    options.pop("conv_kernel_size", None)  # needs self-attention
    if name == "nystrom_attention":
        attend = partial(nystrom_attention, num_landmarks=7, cross_attention=True)
    else:
        attend = make(name, cross_attention=True, **options)
    attend = jax.jit(attend)
    out = attend(query, key, value, mask=PADDING[:, None, None])
    for b, mask in enumerate(PADDING):  # T ≠ S, or without a mask
        alone = attend(query[b : b + 1], key[b : b + 1, mask], value[b : b + 1, mask])
        assert relative_error(out[b], alone[0]) <= TOLERANCE["float32"]


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
