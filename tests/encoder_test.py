"""The encoder: its mask, positions, norms, features, dtypes and limits."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import paper
from tests.encoder_cases import (
    FEATURES,
    INPUTS,
    MASK,
    B,
    D,
    L,
    V,
    compile_model,
    compiled_encoder,
    encode,
    encoder_config,
    error_of_valid_rows,
    make_encoder,
)
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)


def test_encoder_masks_the_ignored_id_wherever_it_stands():
    is_token = INPUTS != 4
    assert not is_token.all()
    for mask, expected_mask in ((MASK, MASK & is_token), (None, is_token)):
        out, out_mask = compiled_encoder(attention="linear", ignore_id=4)(INPUTS, mask)
        np.testing.assert_array_equal(out_mask, expected_mask)
        expected, _ = compiled_encoder(attention="linear")(INPUTS, expected_mask)
        assert relative_error(out, expected) <= TOLERANCE["same"]


def test_encoder_has_a_position_for_each_token():
    model = make_encoder(attention="identity")

    def num_distinct_vectors():
        """The vectors of a sequence of one token, over and over."""
        [vectors] = encode(model, np.ones((1, L), int))
        return len(np.unique(np.round(vectors, 4), axis=0))

    assert num_distinct_vectors() == L
    model.positions[...] = jnp.zeros((L, D))
    assert num_distinct_vectors() == 1


def test_encoder_in_bfloat16_is_near_float32():
    out, _ = compiled_encoder(dtype=jnp.bfloat16)(INPUTS, MASK)
    assert out.dtype == jnp.bfloat16
    expected, _ = compiled_encoder()(INPUTS, MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["bfloat16"]


def test_encoder_cls_token_stands_in_front_and_is_never_padding():
    out, mask = compiled_encoder(cls_token=True)(INPUTS, MASK)
    assert out.shape == (B, L + 1, D)
    np.testing.assert_array_equal(mask, np.c_[np.ones(B, bool), MASK])


def test_nystrom_encoder_is_exported_for_any_batch():
    (batch_size,) = jax.export.symbolic_shape("b")
    inputs = jax.ShapeDtypeStruct((batch_size, L), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch_size, L), bool)
    exported = jax.export.export(jax.jit(make_encoder(cls_token=True)))(inputs, mask)
    out, _ = exported.call(jnp.int32(INPUTS), MASK)
    expected, _ = compiled_encoder(cls_token=True)(INPUTS, MASK)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


# There is padding in front, too.
IS_TOKEN = MASK & (np.arange(L) >= 2)


@pytest.fixture(scope="module")
def run_with_padding():
    """An encoder of padded ids: (ids, types or None) -> outputs and gradients."""
    options = {"num_layers": 2, "num_token_types": 2, "separator": 0}
    graphdef, state = nnx.split(make_encoder(**options))

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(state, inputs, token_types):
        encoder = nnx.merge(graphdef, state)
        out, _ = encoder(inputs, jnp.asarray(IS_TOKEN), token_types=token_types)
        return jnp.where(IS_TOKEN[:, :, None], jnp.sin(out), 0).sum(), out

    return functools.partial(run, state)


@pytest.mark.parametrize("garbage", [-100, -1, V + 1, 0])
def test_encoder_ignores_ids_in_padding_forward_and_backward(run_with_padding, garbage):
    """They may be outside the vocabulary, or the id of the separator, here 0."""
    clean_inputs = np.where(IS_TOKEN, INPUTS, 5)
    dirty_inputs = np.where(IS_TOKEN, INPUTS, garbage)
    types = INPUTS % 2
    for clean_types, dirty_types in (
        (None, None),
        (types, np.where(IS_TOKEN, types, garbage)),
    ):
        (_, expected), expected_gradient = run_with_padding(clean_inputs, clean_types)
        (_, out), gradient = run_with_padding(dirty_inputs, dirty_types)
        assert np.isfinite(out).all()
        # Both are of one program, which masks the ids before it computes.
        np.testing.assert_array_equal(out[IS_TOKEN], expected[IS_TOKEN])
        jax.tree.map(np.testing.assert_array_equal, gradient, expected_gradient)


@pytest.mark.parametrize("id_outside", [-1, -V, V])
def test_encoder_makes_nan_of_ids_outside_their_table(id_outside):
    """Ids of tokens and of token types; −1 is not the last row."""
    model = make_encoder(attention="identity", num_token_types=V)
    is_outside = INPUTS == 3
    ids = np.where(is_outside, id_outside, INPUTS)
    for inputs, token_types in ((ids, INPUTS), (INPUTS, ids)):
        out = encode(model, inputs, None, None, token_types)
        np.testing.assert_array_equal(np.isnan(out).all(-1), is_outside)
        assert np.isfinite(out[~is_outside]).all()


def test_encoder_projects_features_as_it_embeds_tokens():
    """One-hot features on the rows of the embedding are tokens."""
    token_model = make_encoder()
    expected, _ = compile_model(token_model)(INPUTS, MASK)
    state = nnx.state(token_model)
    del state["embedding"]

    model = make_encoder(vocab_size=None, input_dim=V)
    nnx.update(model, state)
    model.embedding.kernel[...] = token_model.embedding.embedding[...]
    out, mask = compile_model(model)(np.eye(V, dtype=np.float32)[INPUTS], MASK)
    assert error_of_valid_rows(out, expected) <= TOLERANCE["float32"]
    np.testing.assert_array_equal(mask, MASK)


def test_encoder_ignores_features_in_padding_forward_and_backward():
    graphdef, state = nnx.split(
        make_encoder(vocab_size=None, input_dim=V, num_layers=2)
    )

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(state, features):
        out, _ = nnx.merge(graphdef, state)(features, jnp.asarray(MASK))
        return jnp.where(MASK[:, :, None], jnp.sin(out), 0).sum(), out

    dirty_features = np.where(MASK[:, :, None], FEATURES, np.nan)
    (_, out), gradient = run(state, dirty_features)
    (_, expected), expected_gradient = run(state, FEATURES)
    # Both are of one program, which masks the features before it computes.
    np.testing.assert_array_equal(out[MASK], expected[MASK])
    jax.tree.map(np.testing.assert_array_equal, gradient, expected_gradient)
    kernel_gradient = np.asarray(gradient["embedding"]["kernel"])
    assert kernel_gradient.any(1).all()


def num_parameters(**options):
    model = nnx.eval_shape(lambda: make_encoder(**options))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))


def test_encoder_with_post_norm_has_no_last_norm():
    out, _ = compiled_encoder(norm="post", attention="identity")(INPUTS, MASK)
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(out.std(-1), 1, atol=1e-3)
    assert num_parameters(norm="post") == num_parameters() - 2 * D


def test_encoder_refuses_ids_that_are_no_integers():
    for ids, mask in itertools.product((INPUTS.astype("float32"), MASK), (None, MASK)):
        message = f"ids must be integers, got an array of {ids.dtype}"
        with pytest.raises(ValueError, match=message):
            make_encoder()(ids, mask)


def test_encoder_embedding_norm_hides_the_scale_of_embeddings():
    def error_of_another_scale(embedding_norm):
        model = make_encoder(embedding_norm=embedding_norm, attention="identity")
        expected = encode(model, INPUTS)
        model.embedding.embedding[...] *= 100
        model.positions[...] *= 100
        return relative_error(encode(model, INPUTS), expected)

    assert error_of_another_scale(embedding_norm=True) < 0.05
    assert error_of_another_scale(embedding_norm=False) > 0.1


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_mlp_takes_the_gelu_of_the_config(kind):
    """In numpy, with weights that are large enough to tell the two apart."""
    mlp = make_encoder(gelu=kind).blocks[0].mlp
    mlp.expand.kernel[...] *= 3
    x = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
    out = nnx.jit(mlp)(x)
    hidden = np.float64(x) @ np.float64(mlp.expand.kernel[...])

    def error_beside(kind):
        expected = paper.gelu(hidden, kind) @ np.float64(mlp.contract.kernel[...])
        return relative_error(out, expected)

    other_kind = "erf" if kind == "tanh" else "tanh"
    assert error_beside(kind) <= TOLERANCE["float32"]
    assert error_beside(other_kind) > 10 * TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_layers": 2.0}, "num_layers must be int, got 2.0"),
        ({"max_length": 1e3}, "max_length must be int, got 1000.0"),
        ({"short_conv": 3.0}, "short_conv must be int, got 3.0"),
        ({"vocab_size": 8.0}, "vocab_size must be int, got 8.0"),
        ({"separator": "2"}, r"separator must be int \| None, got '2'"),
        ({"ignore_id": 0.0}, r"ignore_id must be int \| None, got 0\.0"),
        ({"mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"vocab_size": None, "input_dim": -3}, "input_dim must be at least 1, got -3"),
        ({"num_token_types": -1}, "num_token_types must be at least 0, got -1"),
        ({"dtype": int}, "dtype must be of floats, such as float32, got int"),
        ({"remat": "all"}, "remat.*none.*block.*'all'"),
        ({"norm": "middle"}, "norm.*pre.*post.*'middle'"),
        ({"input_dim": V}, "vocab_size, for tokens, or input_dim"),
        ({"vocab_size": None, "input_dim": V, "ignore_id": 0}, "ignore_id=0.*features"),
        ({"vocab_size": None, "input_dim": V, "separator": 3}, "separator=3.*features"),
        ({"attention": "nistrom"}, "unknown attention 'nistrom'; known: nystrom"),
        ({"attention_options": {"landmark": 3}}, "no option 'landmark'"),
    ],
)
def test_encoder_config_rejects_invalid_settings(options, text):
    with pytest.raises(ValueError, match=text):
        encoder_config(**options)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (np.zeros((1, L + 1), int), "length 32 is over max_length 31"),
        (
            np.zeros(L, int),
            r"must be token ids \[B, L\], got \(31,\): for feature vectors",
        ),
        (np.zeros((1, 0), int), r"at least one token, got \(1, 0\)"),
    ],
)
def test_encoder_rejects_ids_of_another_shape(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_encoder()(inputs)


@pytest.mark.parametrize("shape", [(B, L), (B, L, V + 1)])
def test_encoder_of_features_rejects_inputs_of_another_shape(shape):
    message = rf"must be \[B, L, F\] with F = {V}, .*, got {re.escape(str(shape))}"
    with pytest.raises(ValueError, match=message):
        make_encoder(vocab_size=None, input_dim=V)(np.zeros(shape))


@pytest.mark.parametrize("mask", [MASK[:, None, None], MASK[:2], MASK[:, :-1], MASK[0]])
def test_encoder_rejects_a_mask_of_another_shape(mask):
    """One of them is [B, 1, 1, L], which an attention by itself takes."""
    with pytest.raises(ValueError, match=r"mask must be \[B, L\], here \(3, 31\), got"):
        make_encoder()(INPUTS, mask)


def test_encoder_rejects_a_mask_that_is_not_boolean():
    """As the attention_mask of transformers."""
    message = r"\(True = a token\), got int64: pass mask.astype\(bool\)"
    with pytest.raises(ValueError, match=message):
        make_encoder()(INPUTS, MASK.astype(int))


def test_encoder_rejects_lists():
    """As a tokenizer returns them."""
    encoder = make_encoder()
    with pytest.raises(ValueError, match=r"inputs must be an array, got a list: pass"):
        encoder(INPUTS.tolist())
    with pytest.raises(ValueError, match=r"pass jnp.array\(mask\)"):
        encoder(INPUTS, MASK.tolist())


def test_encoder_config_is_a_static_argument():
    """Equal configs share a program, and others do not."""

    @functools.partial(jax.jit, static_argnums=0)
    def num_landmarks(config):
        return config.attention_options["num_landmarks"]

    for count in (3, 4):
        config = encoder_config(attention_options={"num_landmarks": count})
        same = encoder_config(attention_options={"num_landmarks": count})
        assert num_landmarks(config) == num_landmarks(same) == count
        assert hash(config) == hash(same)
    assert num_landmarks._cache_size() == 2


def test_encoder_of_an_empty_batch_is_empty():
    out, mask = compiled_encoder(cls_token=True)(INPUTS[:0], MASK[:0])
    assert out.shape == (0, L + 1, D)
    assert mask.shape == (0, L + 1)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_encoder_promotes_no_dtype_unasked(dtype):
    """As in a program that sets `jax_numpy_dtype_promotion="strict"`."""
    graphdef, state = nnx.split(
        make_encoder(dropout_rate=0.3, num_token_types=2, separator=3, dtype=dtype)
    )

    def loss(state):
        vectors, _ = nnx.merge(graphdef, state)(jnp.asarray(INPUTS), MASK, KEY)
        return vectors.sum()

    with jax.numpy_dtype_promotion("strict"):
        # This raises where a dtype is promoted.
        jax.eval_shape(jax.grad(loss), state)
