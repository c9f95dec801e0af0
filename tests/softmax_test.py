"""Exact attention: the implementation chosen, and dropout of the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.softmax import softmax_attention
from tests.tolerance import TOLERANCE, relative_error

B, L, N, H = 3, 7, 2, 8


def inputs(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(B, L, N, H)), dtype) for _ in range(3)]


def make(**options):
    given = {"num_heads": N, "head_dim": H, "max_length": L, "rngs": nnx.Rngs(0)}
    return make_attention("softmax", **given, **options)


@pytest.mark.parametrize("attend", [softmax_attention, make().__call__])
def test_auto_runs_without_a_gpu(attend):
    expected = softmax_attention(*inputs(), implementation="xla")
    np.testing.assert_array_equal(attend(*inputs()), expected)


def test_cudnn_without_a_gpu_says_why():
    with pytest.raises(ValueError, match=r"'cudnn' needs a CUDA GPU.*got none"):
        make(implementation="cudnn")(*inputs(jnp.bfloat16))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dropout_rate": 0.5, "deterministic": False}, "without dropout"),
        ({"module": nnx.Dict()}, "without sowing"),
        ({"precision": "highest"}, "without precision"),
        ({"bias": jnp.zeros((1, N, L, L))}, "without bias"),
        ({"mask": jnp.ones((B, 1, L, L), bool)}, "without mask over queries"),
        ({"mask": jnp.ones((B, 1, 1, L), bool), "is_causal": True}, "beside a mask"),
        ({"dtype": jnp.float32}, "float16, got float32"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_cudnn_does_not_do_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        softmax_attention(*inputs(jnp.bfloat16), implementation="cudnn", **options)


def test_an_unknown_implementation_is_refused():
    text = "implementation.*auto.*xla.*cudnn.*'flash'"
    with pytest.raises(ValueError, match=text):
        make(implementation="flash")
    with pytest.raises(ValueError, match=text):
        softmax_attention(*inputs(), implementation="flash")


@pytest.mark.parametrize("broadcast_dropout", [True, False])
def test_dropout_falls_on_the_weights(broadcast_dropout):
    """With V = I the output is the weights: dropped ones 0, the others twice."""
    query, key, _ = inputs()
    value = jnp.zeros((B, L, N, H)).at[:, jnp.arange(L), :, jnp.arange(L)].set(1)
    options = {"dropout_rng": jax.random.key(0), "broadcast_dropout": broadcast_dropout}
    exact = np.asarray(softmax_attention(query, key, value))[..., :L]
    out = softmax_attention(
        query, key, value, dropout_rate=0.5, deterministic=False, **options
    )
    out = np.asarray(out)[..., :L]  # [B, T, N, S]
    kept = out != 0
    assert relative_error(out[kept], 2 * exact[kept]) <= TOLERANCE["float32"]
    draws = L * L if broadcast_dropout else kept.size
    assert abs(kept.mean() - 0.5) < 5 * 0.5 / np.sqrt(draws)
    assert (kept == kept[:1, :, :1]).all() == broadcast_dropout
