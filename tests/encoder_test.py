"""The encoder: padding, dropout, rematerialisation, features, dtypes and limits."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.encoder import Encoder
from tests import paper
from tests.encoder_cases import (
    INPUTS,
    MASK,
    OPTIONS,
    B,
    D,
    L,
    V,
    compiled,
    encoder_config,
)
from tests.jaxpr import equations
from tests.tolerance import TOLERANCE, relative_error

KEY = jax.random.key(1)


def make(**options):
    return Encoder(encoder_config(**options), rngs=nnx.Rngs(0))


@functools.cache
def forward(**options):
    return compiled(make(**options))


@nnx.jit
def encode(model, *inputs):
    """The vectors of a model, whose train() and eval() are programs of their own."""
    vectors, _ = model(*inputs)
    return vectors


def rows_differ(actual, expected):
    pairs = zip(actual, expected, MASK, strict=True)
    return max(relative_error(a[m], e[m]) for a, e, m in pairs)


def test_encoder_masks_the_ignored_id_wherever_it_stands():
    tokens = INPUTS != 4
    assert not tokens.all()
    for given, valid in ((MASK, MASK & tokens), (None, tokens)):
        out, mask = forward(ignore_id=4)(INPUTS, given)
        np.testing.assert_array_equal(mask, valid)
        np.testing.assert_array_equal(out, forward()(INPUTS, valid)[0])


def test_encoder_has_a_position_for_each_token():
    same_token = np.ones((1, L), int)
    model = make(attention="identity", attention_options={})
    for distinct in (L, 1):
        vectors = np.asarray(encode(model, same_token)[0])
        assert len(np.unique(np.round(vectors, 4), axis=0)) == distinct
        model.positions[...] = jnp.zeros((L, D))


def test_encoder_after_train_needs_a_key_for_its_dropout():
    model = make(dropout_rate=0.3, attention="identity")
    expected = encode(model, INPUTS, MASK)
    model.train()
    with pytest.raises(ValueError, match=r"pass dropout_rng=….*model\.eval\(\)"):
        encode(model, INPUTS, MASK)
    assert rows_differ(encode(model, INPUTS, MASK, KEY), expected) > 0.01
    model.eval()
    np.testing.assert_array_equal(encode(model, INPUTS, MASK), expected)
    without = make(dropout_rate=0.0, attention="identity")
    without.train()
    np.testing.assert_array_equal(encode(without, INPUTS, MASK), expected)


def test_encoder_after_train_needs_a_key_for_dropout_of_weights_alone():
    options = {"attention": "softmax", "attention_options": {"dropout_rate": 0.5}}
    model = make(dropout_rate=0.0, **options)
    model.train()
    with pytest.raises(ValueError, match=r"pass dropout_rng=…"):
        encode(model, INPUTS, MASK)


def test_encoder_after_train_needs_a_key_for_features_that_are_redrawn():
    options = {"num_features": 5, "redraw_features": True}
    model = make(dropout_rate=0.0, attention="performer", attention_options=options)
    expected = encode(model, INPUTS, MASK)
    model.train()
    with pytest.raises(ValueError, match=r"redrawn.*pass dropout_rng=…"):
        encode(model, INPUTS, MASK)
    assert rows_differ(encode(model, INPUTS, MASK, KEY), expected) > 0.01


def test_encoder_dropout_is_a_function_of_its_key():
    function = forward(dropout_rate=0.3)
    first, _ = function(INPUTS, MASK, KEY)
    np.testing.assert_array_equal(first, function(INPUTS, MASK, KEY)[0])
    assert rows_differ(function(INPUTS, MASK, jax.random.key(2))[0], first) > 0.01
    off, _ = function(INPUTS, MASK)
    assert rows_differ(first, off) > 0.01
    np.testing.assert_array_equal(off, forward()(INPUTS, MASK)[0])


def test_encoder_drops_other_attention_weights_in_each_row():
    options = {"attention_options": {"dropout_rate": 0.5}, "dropout_rate": 0.0}
    function = compiled(make(attention="softmax", **options))
    same, _ = function(np.tile(INPUTS[:1], (2, 1)), None, KEY)
    assert relative_error(same[0], same[1]) > 0.01


def test_encoder_remat_recomputes_and_changes_nothing():
    def loss(state, graphdef):
        x, _ = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK), KEY)
        return jnp.where(MASK[:, :, None], jnp.sin(x), 0).sum()

    gradients = {}
    num_products = {}
    for remat in ("none", "block"):
        graphdef, state = nnx.split(make(dropout_rate=0.3, remat=remat))
        gradient = functools.partial(jax.grad(loss), graphdef=graphdef)
        gradients[remat], _ = jax.flatten_util.ravel_pytree(jax.jit(gradient)(state))
        names = [equation.primitive.name for equation in equations(gradient, state)]
        num_products[remat] = names.count("dot_general")
    error = relative_error(gradients["block"], gradients["none"])
    assert error <= TOLERANCE["float32"]
    assert num_products["block"] > num_products["none"]


NYSTROM = {"num_landmarks": 7, "num_pinv_iters": 2}


def swapped_by_hand(remat):
    """An encoder of softmax whose layer 1 has the attention of another encoder.

    Both begin with the same numbers, as these attentions have no parameters.
    """
    by_hand = make(attention="softmax", num_layers=3, remat=remat)
    nystrom = make(attention="nystrom", attention_options=NYSTROM, num_layers=3)
    by_hand.blocks[1].attention.attention = nystrom.blocks[1].attention.attention
    return by_hand


@pytest.mark.parametrize("remat", ["none", "block"])
@pytest.mark.parametrize(
    ("attention", "by_layer"),
    [
        ("softmax", {1: {"name": "nystrom", **NYSTROM}}),
        ("nystrom", {0: "softmax", 2: {"name": "softmax"}}),
    ],
)
def test_encoder_with_an_attention_for_each_layer(attention, by_layer, remat):
    options = NYSTROM if attention == "nystrom" else {}
    model = make(
        attention=attention,
        attention_options=options,
        attention_by_layer=by_layer,
        num_layers=3,
        remat=remat,
    )
    out, _ = compiled(model)(INPUTS, MASK)
    expected, _ = compiled(swapped_by_hand(remat))(INPUTS, MASK)
    np.testing.assert_array_equal(out, expected)
    only_softmax, _ = forward(attention="softmax", num_layers=3, remat=remat)(
        INPUTS, MASK
    )
    assert rows_differ(out, only_softmax) > 1e-4


def test_encoder_shares_a_projection_among_the_layers_that_have_it():
    linformer = {"projection_dim": 4, "sharing": "layerwise_per_head"}
    model = make(
        attention="linformer",
        attention_options=linformer,
        attention_by_layer={0: "softmax", 2: {"projection_dim": 5}},
        num_layers=4,
    )
    _, second, third, fourth = [block.attention.attention for block in model.blocks]
    assert second is fourth
    assert second.projection.shape[1:] == (4, L)
    assert third.projection.shape[1:] == (5, L)
    shapes = [x.shape for x in jax.tree.leaves(nnx.state(model)) if x.shape[-1] == L]
    assert len(shapes) == 2


def test_encoder_shares_a_projection_with_a_layer_that_states_a_default():
    model = make(
        max_length=256,
        attention="linformer",
        attention_options={"sharing": "layerwise"},
        attention_by_layer={1: {"projection_dim": 256}},
        num_layers=2,
    )
    first, second = [block.attention.attention for block in model.blocks]
    assert first is second


def test_encoder_config_refuses_a_layer_that_it_does_not_have():
    with pytest.raises(ValueError, match=r"no layer 2 to have .*: the 2 layers are 0"):
        encoder_config(num_layers=2, attention_by_layer={2: "softmax"})


TRANSFORMED = {
    "jit": lambda call: jax.jit(call)(INPUTS),
    "vmap": lambda call: jax.vmap(call)(INPUTS[None])[0],
    "scan": lambda call: jax.lax.scan(lambda c, x: (c, call(x)), 0, INPUTS[None])[1][0],
    "lax.map": lambda call: jax.lax.map(call, INPUTS[None])[0],
    "grad": lambda call: jax.value_and_grad(lambda x: call(INPUTS).sum() * x)(1.0)[0],
}


@pytest.mark.parametrize(
    ("name", "attention", "options"),
    [
        *((name, "identity", {}) for name in TRANSFORMED),
        ("jit", "nystrom", OPTIONS),
        ("jit", "linformer", {"projection_dim": 5, "sharing": "layerwise"}),
        ("jit", "linformer", {"projection_dim": 5, "sharing": "layerwise_per_head"}),
        ("jit", "performer", {"num_features": 3}),
    ],
)
def test_encoder_remat_can_be_transformed_from_outside(name, attention, options):
    """Also with parameters that all blocks share, and with some that never train."""
    outputs = []
    for remat in ("none", "block"):
        model = make(
            attention=attention,
            attention_options=options,
            remat=remat,
            num_layers=2,
        )
        transformed = functools.partial(
            TRANSFORMED[name], lambda x, model=model: model(x)[0]
        )
        outputs.append(jax.jit(transformed)())
    assert relative_error(*outputs) <= TOLERANCE["float32"]


def test_encoder_in_bfloat16_is_near_float32():
    out, _ = forward(dtype=jnp.bfloat16)(INPUTS, MASK)
    assert out.dtype == jnp.bfloat16
    assert rows_differ(out, forward()(INPUTS, MASK)[0]) <= TOLERANCE["bfloat16"]


def test_encoder_cls_token_stands_in_front_and_is_never_padding():
    out, mask = forward(cls_token=True)(INPUTS, MASK)
    assert out.shape == (B, L + 1, D)
    np.testing.assert_array_equal(mask, np.c_[np.ones(B, bool), MASK])


def test_nystrom_encoder_is_exported_for_any_batch():
    (batch_size,) = jax.export.symbolic_shape("b")
    inputs = jax.ShapeDtypeStruct((batch_size, L), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch_size, L), bool)
    exported = jax.export.export(jax.jit(make(cls_token=True)))(inputs, mask)
    out, _ = exported.call(jnp.int32(INPUTS), MASK)
    expected, _ = forward(cls_token=True)(INPUTS, MASK)
    assert relative_error(out, expected) <= TOLERANCE["float32"]


FEATURES = np.random.default_rng(1).normal(size=(B, L, V)).astype(np.float32)


def test_encoder_projects_features_as_it_embeds_tokens():
    """One-hot features on the rows of the embedding are tokens."""
    of_tokens = make()
    expected, _ = compiled(of_tokens)(INPUTS, MASK)
    state = nnx.state(of_tokens)
    model = make(vocab_size=None, input_dim=V)
    kernel = state["embedding"]["embedding"]
    model.embedding.kernel[...] = kernel[...]
    del state["embedding"]
    nnx.update(model, state)
    out, mask = compiled(model)(np.eye(V, dtype=np.float32)[INPUTS], MASK)
    assert rows_differ(out, expected) <= TOLERANCE["float32"]
    np.testing.assert_array_equal(mask, MASK)


def test_encoder_ignores_features_in_padding_forward_and_backward():
    graphdef, state = nnx.split(make(vocab_size=None, input_dim=V, num_layers=2))

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def run(state, features):
        out, _ = nnx.merge(graphdef, state)(features, jnp.asarray(MASK))
        return jnp.where(MASK[:, :, None], jnp.sin(out), 0).sum(), out

    (_, clean), gradient = run(state, FEATURES)
    (_, out), again = run(state, np.where(MASK[:, :, None], FEATURES, np.nan))
    np.testing.assert_array_equal(out[MASK], clean[MASK])
    jax.tree.map(np.testing.assert_array_equal, again, gradient)
    assert np.asarray(gradient["embedding"]["kernel"]).any(1).all()


def count(**options):
    model = nnx.eval_shape(lambda: make(**options))
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model)))


def linformer(sharing, **options):
    return {
        "attention": "linformer",
        "attention_options": {"projection_dim": 5, "sharing": sharing},
        **options,
    }


@pytest.mark.parametrize(
    ("sharing", "num_matrices"),
    [("headwise", 24), ("key_value", 12), ("layerwise", 1), ("layerwise_per_head", 2)],
)
def test_encoder_of_12_layers_has_as_many_projections_as_linformer_says(
    sharing, num_matrices
):
    """Section 4 of Linformer: 24, 12 and 1; as on the LRA one for each of two heads."""
    num_parameters = count(**linformer(sharing, num_layers=12))
    num_others = count(attention="softmax", num_layers=12)
    assert num_parameters - num_others == num_matrices * 5 * L


def projection_gradients(model):
    """The gradient of E in every block that has one."""
    graphdef, state = nnx.split(model)

    @jax.jit
    @jax.grad
    def gradient(state):
        out, _ = nnx.merge(graphdef, state)(INPUTS, jnp.asarray(MASK))
        return jnp.where(MASK[:, :, None], jnp.sin(out), 0).sum()

    blocks = nnx.to_pure_dict(gradient(state))["blocks"]
    gradients = []
    for block in blocks.values():
        attention = block["attention"].get("attention", {})
        gradients.extend(np.asarray(x) for x in attention.values())
    return gradients


@pytest.mark.parametrize("remat", ["none", "block"])
def test_encoder_layers_share_a_projection_and_sum_its_gradients(remat):
    """Against a model whose layers have equal projections of their own."""
    shared = make(**linformer("layerwise", num_layers=3, remat=remat))
    assert len({id(block.attention.attention) for block in shared.blocks}) == 1
    apart = make(**linformer("key_value", num_layers=3))
    for block, block_with_shared in zip(apart.blocks, shared.blocks, strict=True):
        projection = block_with_shared.attention.attention.projection[...]
        block.attention.attention.projection[...] = projection

    # The other parameters were drawn by the same keys.
    out, _ = compiled(shared)(INPUTS, MASK)
    expected, _ = compiled(apart)(INPUTS, MASK)
    assert rows_differ(out, expected) <= TOLERANCE["float32"]

    [gradient] = projection_gradients(shared)
    of_layers = projection_gradients(apart)
    assert len(of_layers) == 3
    assert relative_error(gradient, sum(of_layers)) <= TOLERANCE["float32"]
    assert relative_error(of_layers[0], sum(of_layers)) > 0.01


def test_encoder_trains_the_projection_of_each_head_that_layers_share():
    model = make(**linformer("layerwise_per_head", num_layers=3))
    assert len({id(block.attention.attention) for block in model.blocks}) == 1
    [gradient] = projection_gradients(model)
    assert all(of_head.any() for of_head in gradient)


def test_encoder_with_post_norm_has_no_last_norm():
    out, _ = forward(norm="post")(INPUTS, MASK)
    np.testing.assert_allclose(out.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(out.std(-1), 1, atol=1e-3)
    assert count(norm="post") == count() - 2 * D


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block_is_its_formula(norm):
    """x + f(LN(x)) and LN(x + f(x)), from the block's own parts."""

    @nnx.jit
    def formula(block, x):
        parts = ((block.attention_norm, block.attention), (block.mlp_norm, block.mlp))
        for ln, function in parts:
            x = x + function(ln(x)) if norm == "pre" else ln(x + function(x))
        return x

    x = jax.random.normal(KEY, (B, L, D))
    block = make(norm=norm).blocks[0]
    assert relative_error(nnx.jit(block)(x), formula(block, x)) <= TOLERANCE["same"]


def test_encoder_adds_token_types_by_default_those_after_the_separator():
    inputs = np.where(INPUTS == 3, 4, INPUTS)
    inputs[:, [7, 12]] = 3
    types = np.tile(np.arange(L) > 7, (B, 1)).astype(int)
    model = make(num_token_types=2, attention="identity")
    separating_model = make(num_token_types=2, attention="identity", separator=3)

    given = encode(model, inputs, MASK, None, types)
    zeros = encode(model, inputs, MASK, None, np.zeros((B, L), int))
    np.testing.assert_array_equal(encode(separating_model, inputs, MASK), given)
    np.testing.assert_array_equal(encode(model, inputs, MASK), zeros)
    assert rows_differ(given, zeros) > 1e-3


def test_encoder_gives_features_type_0_unless_types_are_passed():
    model = make(vocab_size=None, input_dim=V, num_token_types=2, attention="identity")
    zeros = encode(model, FEATURES, MASK, None, np.zeros((B, L), int))
    np.testing.assert_array_equal(encode(model, FEATURES, MASK), zeros)
    ones = encode(model, FEATURES, MASK, None, np.ones((B, L), int))
    assert rows_differ(ones, zeros) > 1e-3


def test_encoder_adds_up_the_gradient_of_a_token_type():
    """By the product that serves embeddings, and not by a scatter, on a GPU."""
    graphdef, state = nnx.split(make(num_token_types=2, attention="identity"))

    def total(state, inputs, types):
        out, _ = nnx.merge(graphdef, state)(inputs, None, None, types)
        return out.sum()

    ids = jax.ShapeDtypeStruct((B, L), jnp.int32)
    gradient = jax.jit(jax.grad(total)).trace(state, ids, ids)
    text = gradient.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count('"stablehlo.scatter"(') == 0


def test_encoder_refuses_ids_that_are_no_integers():
    for ids in (INPUTS.astype("float32"), MASK):
        message = f"ids must be integers, got an array of {ids.dtype}"
        with pytest.raises(ValueError, match=message):
            make()(ids)


def test_encoder_embedding_norm_hides_the_scale_of_embeddings():
    for embedding_norm in (True, False):
        model = make(embedding_norm=embedding_norm, attention="identity")
        before = encode(model, INPUTS)
        model.embedding.embedding[...] *= 100
        model.positions[...] *= 100
        error = relative_error(encode(model, INPUTS), before)
        assert error < 0.05 if embedding_norm else error > 0.1


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_mlp_takes_the_gelu_of_the_config(kind):
    """In numpy, with weights that are large enough to tell the two apart."""
    mlp = make(gelu=kind).blocks[0].mlp
    mlp.expand.kernel[...] *= 3
    x = np.random.default_rng(0).normal(size=(B, L, D)).astype(np.float32)
    hidden = np.float64(x) @ np.float64(mlp.expand.kernel[...])

    def expected(kind):
        return paper.gelu(hidden, kind) @ np.float64(mlp.contract.kernel[...])

    out = nnx.jit(mlp)(x)
    assert relative_error(out, expected(kind)) <= TOLERANCE["float32"]
    other = "erf" if kind == "tanh" else "tanh"
    assert relative_error(out, expected(other)) > 10 * TOLERANCE["float32"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"mlp_dim": 0}, "mlp_dim must be at least 1, got 0"),
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


def test_encoder_rejects_a_sequence_over_max_length_or_without_a_batch():
    with pytest.raises(ValueError, match="length 32 is over max_length 31"):
        make()(np.zeros((1, L + 1), int))
    message = r"must be token ids \[B, L\], got \(31,\): for feature vectors"
    with pytest.raises(ValueError, match=message):
        make()(np.zeros(L, int))
    message = r"must be feature vectors \[B, L, F\], got \(3, 31\)"
    with pytest.raises(ValueError, match=message):
        make(vocab_size=None, input_dim=V)(INPUTS)
    with pytest.raises(ValueError, match=r"at least one token, got \(1, 0\)"):
        make()(np.zeros((1, 0), int))


@pytest.mark.parametrize("mask", [MASK[:, None, None], MASK[:2], MASK[:, :-1], MASK[0]])
def test_encoder_rejects_a_mask_of_another_shape(mask):
    """As the one that an attention by itself takes, [B, 1, 1, L]."""
    with pytest.raises(ValueError, match=r"mask must be \[B, L\], here \(3, 31\), got"):
        make()(INPUTS, mask)


def test_encoder_of_an_empty_batch_is_empty():
    out, mask = forward(cls_token=True)(INPUTS[:0], MASK[:0])
    assert out.shape == (0, L + 1, D)
    assert mask.shape == (0, L + 1)


def test_encoder_promotes_no_dtype_unasked():
    """As in a program that sets `jax_numpy_dtype_promotion="strict"`.

    Of float32: with bfloat16 flax's own LayerNorm promotes.
    """
    graphdef, state = nnx.split(make(dropout_rate=0.3, num_token_types=2, separator=3))

    def loss(state):
        return nnx.merge(graphdef, state)(jnp.asarray(INPUTS), MASK, KEY)[0].sum()

    with jax.numpy_dtype_promotion("strict"):
        jax.eval_shape(jax.grad(loss), state)  # or raises
