"""Rotary positions: the rotation, what is rotated, and what it cannot change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer import layers
from nystromformer.encoder import Encoder, EncoderConfig
from nystromformer.rotary import rotate_by_position
from tests import paper
from tests.attention.cases import OPTIONS
from tests.encoder_cases import call
from tests.tolerance import TOLERANCE, relative_error

B, L, V, N, H = 2, 40, 11, 2, 6
D = N * H


def make(attention="softmax", positions="rotary"):
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


def rotated(x, first=0):
    """In float64, as a product of complex numbers; the first token is at `first`."""
    half = x.shape[-1] // 2
    pairs = np.float64(x[..., :half]) + 1j * np.float64(x[..., half:])
    frequencies = 10_000 ** (-2 * np.arange(half) / (2 * half))
    t = first + np.arange(x.shape[1])
    pairs = pairs * np.exp(1j * t[:, None] * frequencies)[None, :, None]
    return np.concatenate([pairs.real, pairs.imag], axis=-1)


def vectors(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_rotate_by_position_is_its_formula():
    x = vectors(B, L, N, H)
    out = jax.jit(rotate_by_position)(x)
    assert relative_error(out, rotated(x)) <= TOLERANCE["float32"]
    assert relative_error(out, rotated(x, first=1)) > 0.1


def test_rotate_by_position_computes_in_float32_for_bfloat16():
    """Position 4,001 is not a bfloat16 number: its angle would be another."""
    x = jnp.asarray(vectors(1, 4002, 1, H), jnp.bfloat16)
    out = jax.jit(rotate_by_position)(x)
    assert out.dtype == jnp.bfloat16
    last = out[:, -1], rotated(np.float32(x))[:, -1]
    assert relative_error(*last) <= TOLERANCE["bfloat16"]


def test_self_attention_rotates_queries_and_keys():
    """Exact attention in float64 numpy, from the layer's own projections."""
    layer = make().blocks[0].attention
    x = vectors(B, L, D)
    projected = np.split(np.asarray(layer.project(jnp.asarray(x))), 3, axis=-1)
    query, key, value = (y.reshape(B, L, N, H) for y in projected)

    def expected(query, key):
        heads = [
            [
                paper.attention(query[b, :, n], key[b, :, n], value[b, :, n], range(L))
                for n in range(N)
            ]
            for b in range(B)
        ]
        attended = np.array(heads).swapaxes(1, 2).reshape(B, L, D)
        return layer.out(jnp.float32(attended))

    found = call(layer, x)
    wanted = expected(rotated(query), rotated(key))
    assert relative_error(found, wanted) <= TOLERANCE["float32"]
    off_by_one = expected(rotated(query), rotated(key, first=1))
    assert relative_error(found, off_by_one) > 1e-3
    assert relative_error(found, expected(query, key)) > 1e-3


@pytest.mark.parametrize(
    ("attention", "num_rotated"), [("identity", 0), ("reformer", 1), ("linear", 2)]
)
def test_self_attention_rotates_all_projections_but_the_value(attention, num_rotated):
    layer = make(attention).blocks[0].attention
    recorded = []

    def record(*qkv, **options):
        recorded.append(qkv)
        return qkv[-1]

    layer.attention = record
    x = jnp.asarray(vectors(B, L, D))
    for rotary in (False, True):
        layer.rotary = rotary
        layer(x)
    (query, key, value), found = recorded
    np.testing.assert_array_equal(found[2], value)
    if num_rotated:
        assert relative_error(found[0], rotated(query)) <= TOLERANCE["float32"]
        assert relative_error(found[1], rotated(key)) <= TOLERANCE["float32"]
    if num_rotated == 1:
        np.testing.assert_array_equal(found[0], found[1])


SHIFT, TOKENS = 9, 25


def shifted_error(positions):
    """How far exact attention's vectors move when padding comes in front of a text."""
    model = make(positions=positions)
    inputs = np.random.default_rng(0).integers(0, V, (B, TOKENS))
    moved = np.pad(inputs, ((0, 0), (SHIFT, L - SHIFT - TOKENS)))
    place = np.arange(L)
    mask = (place >= SHIFT) & (place < SHIFT + TOKENS)
    encode = nnx.jit(lambda model, *inputs: model(*inputs)[0])
    out = encode(model, moved, np.tile(mask, (B, 1)))
    return relative_error(out[:, mask], encode(model, inputs))


def test_exact_attention_with_rotary_positions_ignores_a_shift(monkeypatch):
    assert shifted_error("rotary") <= TOLERANCE["float32"]
    assert shifted_error("none") <= TOLERANCE["float32"]
    assert shifted_error("learned") > 0.01

    def scale_by_position(x):  # so that more than a difference of positions counts
        scale = (1 + jnp.arange(x.shape[1])) / L
        return rotate_by_position(x) * scale[None, :, None, None]

    monkeypatch.setattr(layers, "rotate_by_position", scale_by_position)
    assert shifted_error("rotary") > 0.01


@pytest.mark.parametrize("positions", ["learned", "rotary", "none"])
def test_only_without_positions_is_exact_attention_blind_to_order(positions):
    model = make(positions=positions)
    inputs = np.random.default_rng(0).integers(0, V, (B, L))
    order = np.random.default_rng(1).permutation(L)
    in_order, _ = call(model, inputs)
    reordered, _ = call(model, inputs[:, order])
    error = relative_error(reordered, in_order[:, order])
    assert error <= TOLERANCE["float32"] if positions == "none" else error > 1e-3


def test_only_learned_positions_are_parameters():
    def count(positions):
        state = nnx.state(nnx.eval_shape(lambda: make(positions=positions)))
        return sum(leaf.size for _, leaf in nnx.to_flat_state(state))

    assert count("rotary") == count("none") == count("learned") - L * D
