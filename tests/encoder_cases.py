"""A small encoder and a batch, shared by tests of encoders, heads and dropout."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig
from tests.tolerance import relative_error

# Batch, length, vocabulary and the size of the model.
B = 3
L = 31
V = 13
D = 10
LENGTHS = np.array([31, 19, 11])
MASK = np.arange(L) < LENGTHS[:, None]
# Few iterations: they are unrolled, and compiling takes most of the time.
OPTIONS = {"num_landmarks": 7, "num_pinv_iters": 2, "conv_kernel_size": 5}
INPUTS = np.random.default_rng(0).integers(0, V, (B, L))
FEATURES = np.random.default_rng(1).normal(size=(B, L, V)).astype(np.float32)


def encoder_config(**options: Any) -> EncoderConfig:
    """One layer, and Nyström attention; the options change that."""
    options = {
        "vocab_size": V,
        "max_length": L,
        "num_layers": 1,
        "model_dim": D,
        "mlp_dim": 17,
        "attention_options": {} if options.get("attention") else OPTIONS,
    } | options
    return EncoderConfig(**options)


@nnx.jit
def call(module: nnx.Module, *inputs: Any) -> Any:
    """module(*inputs), compiled once a kind of module and a shape of inputs."""
    return module(*inputs)


def encode(model: nnx.Module, *inputs: Any) -> jax.Array:
    """The vectors of an encoder, whose train() and eval() are programs of their own."""
    vectors, _ = call(model, *inputs)
    return vectors


def compile_model(model: nnx.Module) -> Callable[..., Any]:
    """The model as a function that is compiled once for each shape."""
    graphdef, state = nnx.split(model)
    call = jax.jit(lambda state, *args: nnx.merge(graphdef, state)(*args))
    return functools.partial(call, state)


def make_encoder(**options: Any) -> Encoder:
    return Encoder(encoder_config(**options), rngs=nnx.Rngs(0))


@functools.cache
def compiled_encoder(**options: Any) -> Callable[..., Any]:
    """The encoder of these options as a compiled function."""
    return compile_model(make_encoder(**options))


def error_of_valid_rows(actual: jax.Array, expected: jax.Array) -> float:
    """The largest relative error of an example, at its valid tokens."""
    errors = []
    for row, expected_row, is_valid in zip(actual, expected, MASK, strict=True):
        errors.append(relative_error(row[is_valid], expected_row[is_valid]))
    return float(np.max(errors))  # NaN if one of them is
