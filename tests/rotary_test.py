"""Rotary positions: the rotation, what is rotated, and what it cannot change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import encoder
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.layers import rotate_by_position
from tests import paper
from tests.attention.cases import OPTIONS
from tests.encoder_cases import call
from tests.tolerance import TOLERANCE, relative_error

# Batch, length, vocabulary, heads, and the sizes of a head and of the model.
B = 2
L = 40
V = 11
N = 2
H = 6
D = N * H


def make_encoder(attention="softmax", positions="rotary"):
    config = EncoderConfig(
        vocab_size=V,
        max_length=L,
        num_layers=2,
        num_heads=N,
        model_dim=D,
        mlp_dim=9,
        attention=attention,
        attention_options=OPTIONS.get(attention, {}),
        positions=positions,
    )
    return Encoder(config, rngs=nnx.Rngs(0))


def rotate(x, first_position=0):
    """Rotates in float64, as a product of complex numbers."""
    half = x.shape[-1] // 2
    x = np.asarray(x, np.float64)
    pairs = x[..., :half] + 1j * x[..., half:]
    frequencies = 10_000 ** (-np.arange(half) / half)
    positions = first_position + np.arange(x.shape[1])
    angles = positions[:, None] * frequencies
    rotated = pairs * np.exp(1j * angles)[None, :, None]
    return np.concatenate([rotated.real, rotated.imag], axis=-1)


def random_vectors(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_rotate_by_position_is_its_formula():
    x = random_vectors(B, L, N, H)
    out = jax.jit(rotate_by_position)(x)
    assert relative_error(out, rotate(x)) <= TOLERANCE["float32"]
    assert relative_error(out, rotate(x, first_position=1)) > 0.1


def test_rotate_by_position_computes_in_float32_for_bfloat16():
    """Position 4,001 is not a bfloat16 number: its angle would be another."""
    x = jnp.asarray(random_vectors(1, 4002, 1, H), jnp.bfloat16)
    out = jax.jit(rotate_by_position)(x)
    assert out.dtype == jnp.bfloat16
    expected = rotate(np.float32(x))
    assert relative_error(out[:, -1], expected[:, -1]) <= TOLERANCE["bfloat16"]


def exact_attention(query, key, value):
    """Exact attention of all heads `[B, L, N, H]` in float64 numpy, as `[B, L, D]`."""
    out = np.zeros(query.shape)
    everyone = list(range(L))
    for b, n in np.ndindex(B, N):
        out[b, :, n] = paper.attention(
            query[b, :, n], key[b, :, n], value[b, :, n], everyone
        )
    return out.reshape(B, L, D)


def test_self_attention_rotates_queries_and_keys():
    """The queries, keys and values are made by the layer's own projection."""
    layer = make_encoder().blocks[0].attention
    x = jnp.asarray(random_vectors(B, L, D))
    projected = np.asarray(layer.project(x)).reshape(B, L, 3, N, H)
    query, key, value = np.moveaxis(projected, 2, 0)
    out = call(layer, x)

    def error(query, key):
        """The error of the layer's output, if these are the vectors that it rotated."""
        attended = exact_attention(query, key, value)
        return relative_error(out, layer.out(jnp.float32(attended)))

    assert error(rotate(query), rotate(key)) <= TOLERANCE["float32"]
    assert error(rotate(query), rotate(key, first_position=1)) > 1e-3
    assert error(query, key) > 1e-3


@pytest.mark.parametrize(
    ("attention", "num_rotated"), [("identity", 0), ("reformer", 1), ("linear", 2)]
)
def test_self_attention_rotates_all_projections_but_the_value(attention, num_rotated):
    layer = make_encoder(attention).blocks[0].attention
    inputs_of_attention = []

    def record(query, key, value, **options):
        inputs_of_attention.append((query, key, value))
        return value

    layer.attention = record
    x = jnp.asarray(random_vectors(B, L, D))
    layer.rotary = False
    layer(x)
    layer.rotary = True
    layer(x)

    query, key, value = inputs_of_attention[0]
    rotated_query, rotated_key, same_value = inputs_of_attention[1]
    assert relative_error(same_value, value) <= TOLERANCE["same"]
    if num_rotated:
        assert relative_error(rotated_query, rotate(query)) <= TOLERANCE["float32"]
        assert relative_error(rotated_key, rotate(key)) <= TOLERANCE["float32"]
    if num_rotated == 1:
        np.testing.assert_array_equal(rotated_query, rotated_key)


def error_of_a_shift(positions):
    """The change of exact attention's vectors by padding in front of a text."""
    shift = 9
    num_tokens = 25
    model = make_encoder(positions=positions)
    inputs = np.random.default_rng(0).integers(0, V, (B, num_tokens))
    padded_inputs = np.pad(inputs, ((0, 0), (shift, L - shift - num_tokens)))
    is_token = np.zeros(L, bool)
    is_token[shift : shift + num_tokens] = True

    @nnx.jit
    def encode(model, *inputs):
        vectors, _ = model(*inputs)
        return vectors

    expected = encode(model, inputs)
    out = encode(model, padded_inputs, np.tile(is_token, (B, 1)))

    return relative_error(out[:, is_token], expected)


def test_exact_attention_with_rotary_positions_ignores_a_shift():
    assert error_of_a_shift("rotary") <= TOLERANCE["float32"]
    assert error_of_a_shift("none") <= TOLERANCE["float32"]
    assert error_of_a_shift("learned") > 0.01


def test_a_shift_is_seen_by_vectors_that_grow_with_their_position(monkeypatch):
    """The test above fails where more than the angle depends on the position."""

    def rotate_and_scale(x):
        scale = (1 + jnp.arange(x.shape[1])) / L
        return rotate_by_position(x) * scale[None, :, None, None]

    monkeypatch.setattr(encoder, "rotate_by_position", rotate_and_scale)
    assert error_of_a_shift("rotary") > 0.01


def error_of_another_order(positions):
    """The change of exact attention's vectors by another order of the tokens."""
    model = make_encoder(positions=positions)
    inputs = np.random.default_rng(0).integers(0, V, (B, L))
    order = np.random.default_rng(1).permutation(L)
    out, _ = call(model, inputs)
    reordered_out, _ = call(model, inputs[:, order])
    return relative_error(reordered_out, out[:, order])


def test_exact_attention_without_positions_is_blind_to_order():
    assert error_of_another_order("none") <= TOLERANCE["float32"]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_exact_attention_with_positions_sees_the_order(positions):
    assert error_of_another_order(positions) > 1e-3


def num_parameters(positions):
    encoder = nnx.eval_shape(lambda: make_encoder(positions=positions))
    return sum(leaf.size for _, leaf in nnx.to_flat_state(nnx.state(encoder)))


def test_only_learned_positions_are_parameters():
    without_positions = num_parameters("none")
    assert num_parameters("rotary") == without_positions
    assert num_parameters("learned") == without_positions + L * D
