"""The encoder: padding, dropout, rematerialisation, dtypes and limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import REMAT, Encoder, EncoderConfig
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

B, L, V, D = 3, 31, 13, 10
LENGTHS = np.array([31, 19, 11])
MASK = np.arange(L) < LENGTHS[:, None]
# Few iterations: they are unrolled, and compiling takes most of the time.
OPTIONS = {"num_landmarks": 7, "num_pinv_iters": 2, "conv_kernel_size": 5}
INPUTS = np.random.default_rng(0).integers(0, V, (B, L))
KEY = jax.random.key(1)


def make(**options):
    options = {
        "vocab_size": V,
        "max_length": L,
        "model_dim": D,
        "mlp_dim": 17,
        "attention_options": OPTIONS,
    } | options
    return Encoder(EncoderConfig(**options), rngs=nnx.Rngs(0))


@functools.cache
def forward(**options):
    graphdef, state = nnx.split(make(**options))
    call = jax.jit(lambda state, *args: nnx.merge(graphdef, state)(*args))
    return functools.partial(call, state)


@functools.cache
def gradients(remat):
    """A loss's value and gradients, with dropout, and its state and function."""
    graphdef, state = nnx.split(make(remat=remat, dropout_rate=0.3))

    def loss(state, inputs, mask, rng):
        x, _ = nnx.merge(graphdef, state)(inputs, mask, rng)
        return jnp.where(
            mask[:, :, None], x * jnp.cos(jnp.arange(D))[None, None], 0
        ).sum()

    def loss_of(state):
        return loss(state, INPUTS, jnp.asarray(MASK), KEY)

    return jax.value_and_grad(loss_of), state


def rows_differ(actual, expected):
    pairs = zip(actual, expected, MASK, strict=True)
    return max(relative_error(a[m], e[m]) for a, e, m in pairs)


def test_padding_and_what_stands_in_it_change_nothing():
    out, mask = forward()(INPUTS, MASK)
    np.testing.assert_array_equal(mask, MASK)
    other_tokens = np.where(MASK, INPUTS, (INPUTS + 5) % V)
    np.testing.assert_array_equal(forward()(other_tokens, MASK)[0][MASK], out[MASK])
    assert rows_differ(forward()(other_tokens)[0], forward()(INPUTS)[0]) > 0.01
    short = LENGTHS[1]
    alone, _ = forward()(INPUTS[1:2, :short])
    assert relative_error(out[1:2, :short], alone) <= TOLERANCE["float32"]


def test_a_token_that_is_padding_is_masked_wherever_it_stands():
    tokens = INPUTS != 4
    assert not tokens.all()
    out, mask = forward(ignore_id=4)(INPUTS, MASK)
    np.testing.assert_array_equal(mask, MASK & tokens)
    np.testing.assert_array_equal(out, forward()(INPUTS, MASK & tokens)[0])
    out, mask = forward(ignore_id=4)(INPUTS)
    np.testing.assert_array_equal(mask, tokens)
    np.testing.assert_array_equal(out, forward()(INPUTS, tokens)[0])


def test_a_row_does_not_depend_on_its_batch():
    out, _ = forward()(INPUTS, MASK)
    for b in range(B):
        others = np.arange(B)[:, None] != b
        changed = np.where(others, (INPUTS * 7 + 3) % V, INPUTS)
        again, _ = forward()(changed, np.where(others, MASK[:, ::-1], MASK))
        assert relative_error(again[b][MASK[b]], out[b][MASK[b]]) <= TOLERANCE["same"]


def test_positions_are_learned_one_a_token():
    same_token = np.ones((1, L), int)
    model = make(attention="identity", attention_options={})
    out, _ = model(same_token)
    assert len(np.unique(np.round(np.asarray(out[0]), 4), axis=0)) == L
    model.positions[...] = jnp.zeros((L, D))
    out, _ = model(same_token)
    assert len(np.unique(np.round(np.asarray(out[0]), 4), axis=0)) == 1


def test_dropout_is_a_function_of_its_key_and_off_without():
    function = forward(dropout_rate=0.3)
    first, _ = function(INPUTS, MASK, KEY)
    again, _ = function(INPUTS, MASK, KEY)
    np.testing.assert_array_equal(first, again)
    assert rows_differ(function(INPUTS, MASK, jax.random.key(2))[0], first) > 0.01
    off, _ = function(INPUTS, MASK)
    assert rows_differ(first, off) > 0.01
    np.testing.assert_array_equal(off, forward()(INPUTS, MASK)[0])


def test_attention_weights_are_dropped_in_each_row_by_itself():
    """The authors' dropout: no pattern shared over the batch."""
    options = {"attention": "softmax", "attention_options": {"dropout_rate": 0.5}}
    model = make(dropout_rate=0.0, **options)
    twins = np.tile(INPUTS[:1], (2, 1))
    (one, other), _ = model(twins, None, KEY)
    assert relative_error(one, other) > 0.01
    (one, other), _ = model(twins)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("remat", REMAT[1:])
def test_remat_recomputes_and_changes_nothing(remat):
    plain, state = gradients("none")
    recomputing, _ = gradients(remat)
    (loss, grads), (again, regrads) = jax.jit(plain)(state), jax.jit(recomputing)(state)
    assert relative_error(again, loss) <= TOLERANCE["float32"]
    leaves = zip(jax.tree.leaves(regrads), jax.tree.leaves(grads), strict=True)
    largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(grads))
    for one, other in leaves:
        assert np.abs(one - other).max() <= TOLERANCE["float32"] * largest
        assert np.asarray(other).any()
    products = [
        sum(e.primitive.name == "dot_general" for e in equations(function, state))
        for function in (plain, recomputing)
    ]
    assert products[1] > products[0]


def test_bfloat16_computes_in_bfloat16_on_float32_parameters():
    model = make(dtype=jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.state(model))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    out, _ = forward(dtype=jnp.bfloat16)(INPUTS, MASK)
    assert out.dtype == jnp.bfloat16
    assert rows_differ(out, forward()(INPUTS, MASK)[0]) <= TOLERANCE["bfloat16"]


def test_a_cls_token_stands_in_front_and_is_never_padding():
    out, mask = forward(cls_token=True)(INPUTS, MASK)
    assert out.shape == (B, L + 1, D)
    np.testing.assert_array_equal(mask, np.c_[np.ones(B, bool), MASK])


def count(**options):
    model = nnx.eval_shape(lambda: make(**options))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))


def test_layers_that_share_an_attention_have_its_parameters_once_and_train_it():
    options = {"attention": "linformer", "num_layers": 3, "attention_options": {}}

    def with_sharing(sharing):
        wanted = {"projection_dim": 5, "sharing": sharing}
        return options | {"attention_options": wanted}

    assert (
        count(**with_sharing("key_value")) == count(**with_sharing("layer")) + 2 * 5 * L
    )
    model = make(**with_sharing("layer"))
    graphdef, state = nnx.split(model)

    def loss(state):
        return nnx.merge(graphdef, state)(INPUTS)[0].std()

    gradients = nnx.to_pure_dict(jax.grad(loss)(state))
    shared = gradients["blocks"][0]["attention"]["attention"]["key_projection"]
    assert np.asarray(shared).any()
    merged = nnx.merge(graphdef, state)
    first, *others = (block.attention.attention for block in merged.blocks)
    assert all(other is first for other in others)


def test_post_norm_normalises_every_sum_and_has_no_last_norm():
    out, _ = forward(norm="post")(INPUTS, MASK)
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(out.std(-1), 1, atol=1e-3)
    assert rows_differ(out, forward()(INPUTS, MASK)[0]) > 0.01
    assert count(norm="post") == count() - 2 * D


def test_a_block_is_its_formula_in_either_order():
    """x + f(LN(x)) and LN(x + f(x)), from the block's own parts."""
    x = jax.random.normal(KEY, (B, L, D))
    for norm in ("pre", "post"):
        block = make(norm=norm).blocks[0]
        expected = x
        parts = ((block.attention_norm, block.attention), (block.mlp_norm, block.mlp))
        for ln, function in parts:
            if norm == "pre":
                expected = expected + function(ln(expected))
            else:
                expected = ln(expected + function(expected))
        assert relative_error(block(x), expected) <= TOLERANCE["same"]


def test_token_types_are_added_and_type_0_is_the_default():
    function = forward(num_token_types=2)
    types = np.tile(np.arange(L) > 5, (B, 1)).astype(int)
    plain, _ = function(INPUTS, MASK)
    zeros, _ = function(INPUTS, MASK, None, np.zeros((B, L), int))
    np.testing.assert_array_equal(plain, zeros)
    assert rows_differ(function(INPUTS, MASK, None, types)[0], plain) > 1e-3
    assert count(num_token_types=2) == count() + 2 * D


def test_types_change_behind_the_first_separator():
    inputs = np.where(INPUTS == 3, 4, INPUTS)
    inputs[:, [7, 12]] = 3
    types = np.tile(np.arange(L) > 7, (B, 1)).astype(int)
    wanted, _ = forward(num_token_types=2)(inputs, MASK, None, types)
    found, _ = forward(num_token_types=2, separator=3)(inputs, MASK)
    np.testing.assert_array_equal(found, wanted)


def test_the_norm_of_the_embeddings_hides_their_scale():
    model = make(embedding_norm=True)
    before, _ = model(INPUTS)
    model.embedding.embedding[...] *= 100
    model.positions[...] *= 100
    assert relative_error(model(INPUTS)[0], before) < 0.05
    plain = make()
    before, _ = plain(INPUTS)
    plain.embedding.embedding[...] *= 100
    plain.positions[...] *= 100
    assert relative_error(plain(INPUTS)[0], before) > 0.1


def test_the_tanh_gelu_is_near_the_exact_one_and_not_it():
    exact, tanh = (forward(gelu=gelu)(INPUTS, MASK)[0] for gelu in ("erf", "tanh"))
    assert 1e-7 < rows_differ(tanh, exact) < 1e-2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model_dim": 11, "num_heads": 2}, "model_dim 11.*num_heads 2"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\), got 1.0"),
        ({"remat": "all"}, "remat.*none.*attention.*block.*'all'"),
        ({"norm": "middle"}, "norm.*pre.*post.*'middle'"),
        ({"attention": "nistrom"}, "'nistrom'.*nystrom"),
        ({"attention_options": {"landmark": 3}}, "'landmark'.*num_landmarks"),
    ],
)
def test_settings_that_do_not_fit_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        make(**options)


def test_a_sequence_over_max_length_is_refused():
    with pytest.raises(ValueError, match="length 32 is over max_length 31"):
        make()(np.zeros((1, L + 1), int))
