"""Where cuDNN's flash attention applies, and its treatment of padding, by XLA."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.flash import (
    cuda_capability,
    flash_attention,
    flash_obstacle,
)
from tests import paper
from tests.tolerance import TOLERANCE, relative_error

B, T, S, N, H = 4, 11, 31, 2, 5
FITS = {"capability": 9.0, "dtype": jnp.bfloat16, "head_dim": 64, "asked": []}


def test_it_applies_on_a_gpu_in_16_bits():
    for change in ({}, {"dtype": "float16"}, {"head_dim": 128}, {"capability": 8.0}):
        assert flash_obstacle(**FITS | change) is None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"capability": 0.0}, "8.0 or more, got none"),
        ({"capability": 7.5}, "8.0 or more, got one of 7.5"),
        ({"dtype": jnp.float32}, "bfloat16 or float16, got float32"),
        ({"head_dim": 136}, "a multiple of 8 up to 128, got 136"),
        ({"head_dim": 20}, "a multiple of 8 up to 128, got 20"),
        ({"asked": ["dropout", "bias"]}, "a call without dropout, bias"),
    ],
)
def test_where_it_does_not_apply_it_says_why(change, text):
    assert text in flash_obstacle(**FITS | change)


@pytest.mark.parametrize(
    ("device", "capability"),
    [
        (types.SimpleNamespace(compute_capability="9.0"), 9.0),
        (types.SimpleNamespace(compute_capability="gfx90a"), 0.0),  # ROCm
        (types.SimpleNamespace(), 0.0),  # a CPU or TPU
    ],
)
def test_only_cuda_has_a_capability(monkeypatch, device, capability):
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert cuda_capability() == capability


def test_keys_that_count_are_attended_to_wherever_they_stand():
    rng = np.random.default_rng(0)
    shapes = [(B, T, N, H), (B, S, N, H), (B, S, N, H)]
    scale = np.array([0.1, 1, 4, 1])[:, None, None, None]
    x = [scale * rng.normal(size=shape) for shape in shapes]
    at = np.arange(S)
    mask = np.stack([at >= 0, at < 19, at % 3 == 1, at > 29])
    with jax.enable_x64(True):
        args = [*map(jnp.asarray, x), jnp.asarray(mask)]
        out = flash_attention(*args, implementation="xla")
    query, key, value = x
    for b, n in np.ndindex(B, N):
        expected = paper.attention(
            query[b, :, n], key[b, :, n], value[b, :, n], list(np.flatnonzero(mask[b]))
        )
        assert relative_error(out[b, :, n], expected) <= TOLERANCE["float32"]


def test_without_keys_that_count_it_is_finite():
    x = jnp.zeros((1, 7, N, H))
    out = flash_attention(x, x, x, jnp.zeros((1, 7), bool), implementation="xla")
    np.testing.assert_array_equal(out, x)
