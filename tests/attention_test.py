"""The contract of every attention in the table; listing one is testing it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.encoder import Encoder
from tests.tolerance import TOLERANCE, relative_error

B, N, H, MAX_LENGTH = 3, 2, 5, 67
LENGTHS = np.array([67, 41, 23])
MASK = np.arange(MAX_LENGTH) < LENGTHS[:, None]
KEEP = MASK[:, :, None, None]

# Options that make 67 tokens a long sequence; those not listed use their defaults.
OPTIONS = {
    "nystrom": {"num_landmarks": 7, "conv_kernel_size": 5},
    "linformer": {"projection_dim": 11},
    "performer": {"num_features": 13},
    "reformer": {"bucket_size": 8},
    "longformer": {"window": 4, "num_global": 2},
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
}
# Where a property does not hold, and why.
WITHOUT = {
    "linear memory": {"softmax"},  # up to MAX_SCORES it is the [T, S] matrix
    "refusal": {"softmax"},  # bias, causality and any mask are what it can do
    "equivariance": {"reformer"},  # each head draws its own rotations
    "every value seen": {"reformer"},  # its buckets leave out distant tokens
}


def having(property_name):
    names = [n for n in ATTENTIONS if n not in WITHOUT.get(property_name, ())]
    return pytest.mark.parametrize("name", names)


def make(name, num_heads=N, max_length=MAX_LENGTH, options=None, **given):
    return make_attention(
        name,
        num_heads=num_heads,
        head_dim=H,
        max_length=max_length,
        rngs=nnx.Rngs(0),
        **(OPTIONS.get(name, {}) if options is None else options),
        **given,
    )


def inputs(length=MAX_LENGTH, dtype=np.float32):
    """Query, key and value; the rows differ in scale by 40."""
    rng = np.random.default_rng(0)
    scale = np.array([0.1, 1, 4])[:, None, None, None]
    x = [scale * rng.normal(size=(B, MAX_LENGTH, N, H)) for _ in range(3)]
    return [jnp.asarray(y[:, :length], dtype) for y in x]


@functools.cache
def forward(name):
    graphdef, state = nnx.split(make(name))
    call = jax.jit(lambda state, qkv, mask: nnx.merge(graphdef, state)(*qkv, mask=mask))
    return lambda qkv, mask=None: call(state, qkv, mask)


@functools.cache
def gradients(name):
    """Outputs, and gradients of a loss over valid outputs wrt parameters and inputs."""
    graphdef, params, rest = nnx.split(make(name), nnx.Param, ...)

    def loss(params, qkv, keep):
        out = nnx.merge(graphdef, params, rest)(*qkv, mask=keep[:, None, None, :, 0, 0])
        kept = jnp.where(keep, out, 0)
        weights = jnp.cos(jnp.arange(kept.size)).reshape(kept.shape)
        return (kept * weights).sum(), out

    call = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    return lambda qkv: call(params, qkv, KEEP)


def key_mask(mask):
    return mask[:, None, None, :]


def check_rows(actual, expected, mask, tolerance):
    assert actual.shape == expected.shape
    for one, other, valid in zip(actual, expected, mask, strict=True):
        assert relative_error(one[valid], other[valid]) <= TOLERANCE[tolerance]


@having("any length")
@pytest.mark.parametrize("length", [1, 2, 31])
def test_any_length_and_adding_padding_changes_nothing(name, length):
    short = forward(name)(inputs(length))
    assert short.shape == (B, length, N, H)
    assert short.dtype == jnp.float32
    mask = np.arange(MAX_LENGTH) < np.full((B, 1), length)
    padded = forward(name)(inputs(), key_mask(mask))
    check_rows(padded[:, :length], short, mask[:, :length], "float32")


@having("padding")
@pytest.mark.parametrize("garbage", [np.nan, 1e30])
def test_garbage_in_padding_changes_no_output_and_no_gradient(name, garbage):
    clean_inputs = [jnp.where(KEEP, x, 0) for x in inputs()]
    (_, clean), (clean_params, clean_grads) = gradients(name)(clean_inputs)
    dirty_inputs = [jnp.where(KEEP, x, garbage) for x in inputs()]
    (_, dirty), (dirty_params, dirty_grads) = gradients(name)(dirty_inputs)
    assert np.isfinite(dirty).all()
    np.testing.assert_array_equal(dirty[MASK], clean[MASK])
    jax.tree.map(np.testing.assert_array_equal, dirty_params, clean_params)
    for one, other in zip(dirty_grads, clean_grads, strict=True):
        np.testing.assert_array_equal(one, other)
        assert not np.asarray(one)[~MASK].any()
    seen = np.asarray(dirty_grads[2])[MASK].any(-1)  # [valid tokens, N]
    assert seen.any() if name in WITHOUT["every value seen"] else seen.all()


@having("padding")
def test_without_the_mask_garbage_is_seen(name):
    out = forward(name)([jnp.where(KEEP, x, jnp.nan) for x in inputs()])
    masked = forward(name)(inputs(), key_mask(MASK))
    assert not np.allclose(out[~MASK], masked[~MASK], rtol=0.1)


@having("padding")
def test_a_row_of_nothing_but_padding_is_finite(name):
    mask = MASK & np.array([True, False, True])[:, None]
    assert np.isfinite(forward(name)(inputs(), key_mask(mask))).all()


@having("independence")
def test_a_row_does_not_depend_on_its_batch(name):
    together = forward(name)(inputs(), key_mask(MASK))
    for b in range(B):
        others = np.arange(B) != b
        changed = [x.at[others].multiply(-3.0) for x in inputs()]
        mask = np.where(others[:, None], MASK[:, ::-1], MASK)
        out = forward(name)(changed, key_mask(mask))
        check_rows(out[b : b + 1], together[b : b + 1], MASK[b : b + 1], "same")


@having("equivariance")
def test_heads_are_independent_and_alike(name):
    """Heads exchanged, in inputs and parameters, are outputs exchanged."""
    graphdef, state = nnx.split(make(name))

    def per_head(x):
        return x[(slice(None),) * x.shape.index(N) + (slice(None, None, -1),)]

    flipped = jax.tree.map(lambda x: per_head(x) if N in x.shape else x, state)
    qkv = inputs()
    out = forward(name)(qkv, key_mask(MASK))
    attention = jax.jit(lambda state, *x: nnx.merge(graphdef, state)(*x))
    mask = jnp.asarray(key_mask(MASK))
    exchanged = attention(flipped, *(x[:, :, ::-1] for x in qkv), None, mask)
    check_rows(exchanged[:, :, ::-1], out, MASK, "same")


@having("jit")
def test_eager_equals_compiled_and_works_without_graph_mode(name):
    attention = make(name)
    eager = attention(*inputs(), mask=key_mask(MASK))
    check_rows(eager, forward(name)(inputs(), key_mask(MASK)), MASK, "float32")
    with nnx.set_graph_mode(False):
        call = nnx.jit(lambda m, *x: m(*x))
        out = call(make(name), *inputs(), None, jnp.asarray(key_mask(MASK)))
    check_rows(out, eager, MASK, "float32")


@having("bfloat16")
def test_bfloat16_is_near_float32(name):
    rounded = inputs(dtype=jnp.bfloat16)
    out = forward(name)(rounded, key_mask(MASK))
    assert out.dtype == jnp.bfloat16
    wide = [x.astype(jnp.float32) for x in rounded]
    check_rows(out, forward(name)(wide, key_mask(MASK)), MASK, "bfloat16")


@having("gradients")
def test_every_parameter_has_a_gradient(name):
    _, (grads, _) = gradients(name)(inputs())
    for grad in jax.tree.leaves(grads):
        assert np.isfinite(grad).all()
        assert np.asarray(grad).any()


@having("one compilation")
def test_equal_options_compile_once(name):
    graphdefs, states = zip(*(nnx.split(make(name)) for _ in range(2)), strict=True)
    assert graphdefs[0] == graphdefs[1]
    assert hash(graphdefs[0]) == hash(graphdefs[1])
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def count(graphdef, state):
        traces.append(graphdef)
        return state

    for graphdef, state in zip(graphdefs, states, strict=True):
        count(graphdef, state)
    assert len(traces) == 1


@having("refusal")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bias": np.ones((1, 1, 67, 67))}, r"bias.*\(1, 1, 67, 67\)"),
        ({"is_causal": True}, "is_causal"),
        ({"dropout_rate": 0.5, "deterministic": False}, r"dropout_rate=0\.5"),
        ({"module": nnx.Dict()}, "sow_weights"),
        ({"mask": np.ones((B, 1, 67, 67), bool)}, r"\(3, 1, 67, 67\)"),
        ({"mask": np.ones((B, N, 1, 67), bool)}, r"\(3, 2, 1, 67\)"),
    ],
    ids=["bias", "causal", "dropout", "sowing", "queries", "heads"],
)
def test_what_needs_the_whole_matrix_is_refused(name, options, text):
    with pytest.raises(ValueError, match=text):
        make(name)(*inputs(), **options)


def temporary_bytes(name, length, *, backward):
    attention = make(name, num_heads=1, max_length=length, options={})
    graphdef, state = nnx.split(attention)

    def function(state, *x):
        return nnx.merge(graphdef, state)(*x).sum()

    if backward:
        function = jax.grad(function, argnums=(1, 2, 3))
    x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
    compiled = jax.jit(function).lower(state, x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@having("linear memory")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "gradient"])
def test_memory_is_linear_in_length(name, backward):
    short, long = (temporary_bytes(name, n, backward=backward) for n in (2048, 8192))
    assert long <= 2.2**2 * max(short, 1024)


DROP_INS = {"nystrom_attention": functools.partial(nystrom_attention, num_landmarks=7)}
DROP_INS |= {name: make(name) for name in ATTENTIONS}


def check_drop_in(attend):
    """attend(x [B, L, D], mask) with garbage in padding, with and without the mask."""
    x = np.random.default_rng(1).normal(size=(B, MAX_LENGTH, N * H)).astype(np.float32)
    dirty = np.where(MASK[:, :, None], x, 3e3).astype(np.float32)
    clean = attend(x, key_mask(MASK))
    assert clean.shape == x.shape
    check_rows(attend(dirty, key_mask(MASK)), clean, MASK, "same")
    return relative_error(attend(dirty, None)[MASK], attend(x, None)[MASK])


@pytest.mark.parametrize("name", DROP_INS)
def test_drops_into_flax_nnx(name):
    layer = nnx.MultiHeadAttention(
        N, N * H, attention_fn=DROP_INS[name], decode=False, rngs=nnx.Rngs(0)
    )
    graphdef, state = nnx.split(layer)
    call = jax.jit(lambda x, mask: nnx.merge(graphdef, state)(x, mask=mask))
    moved = check_drop_in(call)
    assert moved > 0.01 or name == "none"


@pytest.mark.parametrize("name", DROP_INS)
def test_drops_into_flax_linen(name):
    layer = linen.MultiHeadDotProductAttention(N, attention_fn=DROP_INS[name])
    x = jnp.ones((B, MAX_LENGTH, N * H))
    params = layer.init(jax.random.key(0), x)
    moved = check_drop_in(jax.jit(lambda x, mask: layer.apply(params, x, mask=mask)))
    assert moved > 0.01 or name == "none"


def test_errors_list_what_is_known():
    with pytest.raises(ValueError, match=r"'nistrom'.*nystrom.*softmax"):
        make("nistrom")
    with pytest.raises(ValueError, match=r"'landmark'.*num_landmarks.*segments"):
        check_attention("nystrom", {"landmark": 7})
    with pytest.raises(ValueError, match=r"'none'.*'x'.*none"):
        check_attention("none", {"x": 1})


@pytest.mark.parametrize(
    ("name", "option", "largest", "given"),
    [
        ("nystrom", "num_landmarks", 67, {}),
        ("linformer", "projection_dim", 67, {}),
        ("longformer", "window", 132, {}),
        ("longformer", "num_global", 67, {"window": 4}),
        ("bigbird", "block_size", 67, {"num_random_blocks": 0}),
        ("bigbird", "num_random_blocks", 17, {"block_size": 4}),
        ("reformer", "bucket_size", 68, {}),
    ],
)
def test_what_is_larger_than_any_use_is_refused(name, option, largest, given):
    make(name, options=given | {option: largest})
    too_large = largest + (1 if largest % 2 else 2)  # even where it must be
    text = rf"{option}.*{largest}.*got {too_large}"
    with pytest.raises(ValueError, match=text):
        make(name, options=given | {option: too_large})


@pytest.mark.parametrize(
    ("name", "option"),
    [("nystrom", "landmark_seed"), ("bigbird", "seed"), ("reformer", "seed")],
)
def test_seeds_are_from_0_to_63_bits(name, option):
    make(name, options=OPTIONS[name] | {option: 2**63 - 1})
    for seed in (-1, 2**63):
        with pytest.raises(ValueError, match=rf"{option} must be.*got {seed}"):
            make(name, options=OPTIONS[name] | {option: seed})


@pytest.mark.parametrize("value", [True, 7.0, "7", None])
def test_options_of_the_wrong_type_are_refused(value):
    with pytest.raises(ValueError, match=r"'num_landmarks'.*'nystrom'.*int"):
        check_attention("nystrom", {"num_landmarks": value})


def test_a_float_option_takes_an_int_but_no_bool():
    check_attention("softmax", {"dropout_rate": 0})
    with pytest.raises(ValueError, match=r"'dropout_rate'.*float.*True"):
        check_attention("softmax", {"dropout_rate": True})


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_encoder_has_no_projection_without_a_gradient(name):
    encoder = Encoder(
        vocab_size=5,
        max_length=23,
        num_layers=1,
        model_dim=N * H,
        mlp_dim=7,
        attention=name,
        attention_options=OPTIONS.get(name, {}),
        rngs=nnx.Rngs(0),
    )
    graphdef, params, rest = nnx.split(encoder, nnx.Param, ...)
    tokens = np.random.default_rng(0).integers(0, 5, (B, 23))

    @jax.jit
    @jax.grad
    def gradient(params):
        x, _ = nnx.merge(graphdef, params, rest)(tokens)
        return (x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum()

    gradients = nnx.to_pure_dict(gradient(params))
    kernel = gradients["blocks"][0]["attention"]["project"]["kernel"]
    slices = kernel.reshape(N * H, ATTENTIONS[name].num_projections, N * H)
    assert np.abs(slices).max((0, 2)).min() > 1e-6
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        assert np.abs(leaf).max() > 0, jax.tree_util.keystr(path)
