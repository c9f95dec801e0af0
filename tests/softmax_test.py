"""Exact attention: the implementation chosen, and dropout of the weights."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.softmax import softmax_attention

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
    with pytest.raises(ValueError, match=r"'cudnn' needs a GPU.*'cpu'"):
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
