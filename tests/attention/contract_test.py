"""The contract of every attention in the table; listing one is testing it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import ATTENTIONS, find_attention
from tests.attention.cases import (
    KINDS,
    MASK,
    MAX_LENGTH,
    B,
    H,
    N,
    make,
    normal,
    random_qkv,
    skip_without_float16,
)
from tests.tolerance import TOLERANCE, relative_error

IS_VALID = MASK[:, :, None, None]
# The attentions without a property, and the reason. This is the one place for it.
WITHOUT = {
    # Each of their heads draws blocks or rotations of its own.
    "equivariance": {"bigbird", "reformer"},
    # Its buckets leave out distant tokens.
    "every value seen": {"reformer"},
    # In bfloat16 their weights [T, S] are rounded, as those of exact attention are. The
    # identity has no gradients of queries and keys.
    "values of any mean": {
        "softmax",
        "bigbird",
        "linformer",
        "longformer",
        "reformer",
        "identity",
    },
    # One with all scores [T, S] at once would stand here; softmax has a block of them.
    "linear memory": set(),
}
every_attention = pytest.mark.parametrize("name", ATTENTIONS)


def having(property_name):
    names = [name for name in ATTENTIONS if name not in WITHOUT[property_name]]
    return pytest.mark.parametrize("name", names)


def make_default(name, max_length):
    """The attention of one head with its default options."""
    return find_attention(name)(
        num_heads=1, head_dim=H, max_length=max_length, rngs=nnx.Rngs(0)
    )


@functools.cache
def compiled_with_gradients(name):
    """The one program of [B, 67, N, H]: outputs, and gradients at valid ones.

    A function of (query, key, value), of the mask [B, 67], and of a change of the
    parameters. It returns the output and the gradients of parameters and of inputs.
    """
    graphdef, params, constants = nnx.split(make(name), nnx.Param, ...)

    def loss(params, qkv, constants, mask):
        attention = nnx.merge(graphdef, params, constants)
        out = attention(*qkv, mask=mask[:, None, None])
        valid_out = jnp.where(mask[:, :, None, None], out, 0)
        weights = jnp.cos(jnp.arange(valid_out.size)).reshape(valid_out.shape)
        return (valid_out * weights).sum(), out

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))

    def run(qkv, mask=MASK, change=lambda state: state):
        mask = jnp.asarray(mask)
        (_, out), gradients = gradient(change(params), qkv, change(constants), mask)
        return np.asarray(out), jax.tree.map(np.asarray, gradients)

    return run


@functools.cache
def compiled_call(name):
    """The attention as a compiled function of arrays, of any shape and dtype."""
    graphdef, state = nnx.split(make(name))
    return jax.jit(lambda *arrays: nnx.merge(graphdef, state)(*arrays))


def check_valid_rows(actual, expected, mask, tolerance):
    """Compares example by example, at the valid tokens."""
    assert actual.shape == expected.shape
    for b, is_valid in enumerate(mask):
        error = relative_error(actual[b, is_valid], expected[b, is_valid])
        assert error <= TOLERANCE[tolerance]


def all_finite(tree):
    return all(np.isfinite(array).all() for array in jax.tree.leaves(tree))


@every_attention
def test_attention_ignores_added_padding_at_any_length(name):
    unpadded = compiled_call(name)(*random_qkv(13))
    assert unpadded.shape == (B, 13, N, H)
    assert unpadded.dtype == jnp.float32
    mask = np.tile(np.arange(MAX_LENGTH) < 13, (B, 1))
    padded, _ = compiled_with_gradients(name)(random_qkv(), mask)
    check_valid_rows(padded[:, :13], unpadded, mask[:, :13], "float32")


@every_attention
@pytest.mark.parametrize("garbage", [1e6, 3e38, -np.inf, np.nan])
def test_attention_ignores_garbage_in_padding_forward_and_backward(name, garbage):
    clean = [jnp.where(IS_VALID, x, 0) for x in random_qkv()]
    dirty = [jnp.where(IS_VALID, x, garbage) for x in random_qkv()]
    expected, expected_gradients = compiled_with_gradients(name)(clean)
    out, gradients = compiled_with_gradients(name)(dirty)
    assert np.isfinite(out).all()
    # Both are of one program, in which padding adds nothing but zeros.
    np.testing.assert_array_equal(out[MASK], expected[MASK])
    jax.tree.map(np.testing.assert_array_equal, gradients, expected_gradients)
    _, input_gradients = gradients
    for gradient in input_gradients:
        assert not gradient[~MASK].any()


@every_attention
def test_attention_sees_garbage_without_the_mask(name):
    dirty = [jnp.where(IS_VALID, x, np.nan) for x in random_qkv()]
    out, _ = compiled_with_gradients(name)(dirty, np.ones_like(MASK))
    assert not np.isfinite(out).all()


def values_seen(name):
    """Whether a valid token's value changes an output [valid tokens, N]."""
    _, (_, input_gradients) = compiled_with_gradients(name)(random_qkv())
    value_gradient = input_gradients[2]
    return value_gradient[MASK].any(-1)


@every_attention
def test_attention_sees_the_values_of_some_valid_tokens(name):
    assert values_seen(name).any()


@having("every value seen")
def test_attention_sees_the_values_of_all_valid_tokens(name):
    assert values_seen(name).all()


@every_attention
def test_attention_of_padding_alone_is_finite(name):
    has_tokens = np.array([True, False, True])[:, None]
    assert all_finite(compiled_with_gradients(name)(random_qkv(), MASK & has_tokens))


@every_attention
def test_attention_of_a_row_does_not_depend_on_its_batch(name):
    expected, _ = compiled_with_gradients(name)(random_qkv())
    for b in range(B):
        is_other = np.arange(B) != b
        changed = [x.at[is_other].multiply(-3.0) for x in random_qkv()]
        changed_mask = np.where(is_other[:, None], MASK[:, ::-1], MASK)
        out, _ = compiled_with_gradients(name)(changed, changed_mask)
        row = slice(b, b + 1)
        check_valid_rows(out[row], expected[row], MASK[row], "same")


def reverse_heads(array):
    """The array with its axis of size N, if it has one, in the other order."""
    if N not in array.shape:
        return array
    assert array.shape.count(N) == 1
    return np.flip(array, array.shape.index(N))


@having("equivariance")
def test_attention_treats_heads_equally_and_independently(name):
    """Heads exchanged, in inputs and parameters, are outputs exchanged."""
    expected, _ = compiled_with_gradients(name)(random_qkv())
    exchanged, _ = compiled_with_gradients(name)(
        [x[:, :, ::-1] for x in random_qkv()],
        change=lambda state: jax.tree.map(reverse_heads, state),
    )
    check_valid_rows(exchanged[:, :, ::-1], expected, MASK, "same")


@every_attention
def test_attention_has_gradients_for_its_projections_and_parameters(name):
    _, (params, input_gradients) = compiled_with_gradients(name)(
        random_qkv(), np.ones_like(MASK)
    )
    for gradient in jax.tree.leaves(params):
        assert gradient.any()
    uses_query_and_key = find_attention(name).num_projections > 1
    is_used = [bool(gradient.any()) for gradient in input_gradients]
    assert is_used == [uses_query_and_key, uses_query_and_key, True]


@every_attention
@pytest.mark.parametrize("has_mask", [True, False])
def test_attention_in_bfloat16_is_near_float32(name, has_mask):
    rounded = random_qkv(dtype=jnp.bfloat16)
    mask = MASK if has_mask else np.ones_like(MASK)
    key_mask = jnp.asarray(mask)[:, None, None] if has_mask else None
    out = compiled_call(name)(*rounded, None, key_mask)
    assert out.dtype == jnp.bfloat16
    expected, _ = compiled_with_gradients(name)(
        [x.astype(jnp.float32) for x in rounded], mask
    )
    check_valid_rows(np.asarray(out, np.float32), expected, mask, "bfloat16")


@having("values of any mean")
def test_gradients_in_bfloat16_do_not_drown_in_the_mean_of_the_values(name):
    query, key, value, cotangent = normal(0, 4, 1, 1024, 1, H)
    rounded = jnp.bfloat16([query, key, value + 4])
    attend = make_default(name, max_length=1024)

    @jax.jit
    def gradients(qkv):
        out, pull_back = jax.vjp(lambda qkv: attend(*qkv), qkv)
        return pull_back(cotangent.astype(out.dtype))[0]

    expected = gradients(rounded.astype(jnp.float32))
    for actual, wanted in zip(gradients(rounded), expected, strict=True):
        assert relative_error(actual, wanted) <= TOLERANCE["bfloat16"]


@every_attention
def test_attention_in_float16_has_room_for_sums_over_many_keys(name):
    skip_without_float16()
    query, key, value = normal(0, 3, 1, 4096, 1, H)
    # All keys have a share in every sum, and the sum of values overflows.
    rounded = jnp.float16([0.1 * query, 0.1 * key, value + 30])
    attend = jax.jit(make_default(name, max_length=4096))
    out = attend(*rounded)
    assert out.dtype == jnp.float16
    expected = attend(*rounded.astype(jnp.float32))
    assert relative_error(out, expected) <= TOLERANCE["bfloat16"]


# Whatever float32 would promote, bfloat16 would promote too.
DTYPES = [jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.slow)]


@every_attention
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", [None, MASK[:, None, None]], ids=["all", "mask"])
def test_attention_promotes_no_dtype_unasked(name, dtype, mask):
    """As in a program that sets `jax_numpy_dtype_promotion="strict"`."""
    graphdef, params, constants = nnx.split(make(name), nnx.Param, ...)

    def loss(params, qkv):
        out = nnx.merge(graphdef, params, constants)(*qkv, mask=mask)
        return out.astype(jnp.float32).sum()

    with jax.numpy_dtype_promotion("strict"):
        gradient = jax.grad(loss, argnums=(0, 1))
        # This raises where a dtype is promoted.
        jax.eval_shape(gradient, params, random_qkv(dtype=dtype))


# The encoder with Nyström attention is exported in encoder_test, too.
EXPORTED_IN_FAST_TESTS = ("nystrom", "softmax")


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in EXPORTED_IN_FAST_TESTS
        else pytest.param(name, marks=pytest.mark.slow)
        for name in ATTENTIONS
    ],
)
def test_attention_is_exported_for_any_batch(name):
    attend = jax.jit(make(name))
    shape = (*jax.export.symbolic_shape("b"), MAX_LENGTH, N, H)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    out = jax.export.export(attend)(x, x, x).call(*random_qkv())
    assert relative_error(out, attend(*random_qkv())) <= TOLERANCE["float32"]


@every_attention
@pytest.mark.parametrize("kind", KINDS)
def test_attention_at_extremes_is_finite_forward_and_backward(name, kind):
    """Rows of each kind; logits 2^−10, 1 and 2^10 times their size."""
    rng = np.random.default_rng(0)

    def rows_of_all_heads():
        """[B, L, N, H], the same in each example."""
        heads = [KINDS[kind](rng, MAX_LENGTH, H) for _ in range(N)]
        rows = np.stack(heads, axis=1).astype(np.float32)
        return jnp.broadcast_to(rows, (B, MAX_LENGTH, N, H))

    scale = np.float32([2.0**-10, 1, 2.0**10])
    query = rows_of_all_heads() * scale[:, None, None, None]
    key = rows_of_all_heads()
    value = rows_of_all_heads()
    assert all_finite(compiled_with_gradients(name)([query, key, value]))
