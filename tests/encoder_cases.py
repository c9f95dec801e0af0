"""A small encoder and a batch, shared by tests of encoders, heads and dropout."""

import functools

import jax
import numpy as np
from flax import nnx

from nystromformer.encoder_config import EncoderConfig

B, L, V, D = 3, 31, 13, 10
LENGTHS = np.array([31, 19, 11])
MASK = np.arange(L) < LENGTHS[:, None]
# Few iterations: they are unrolled, and compiling takes most of the time.
OPTIONS = {"num_landmarks": 7, "num_pinv_iters": 2, "conv_kernel_size": 5}
INPUTS = np.random.default_rng(0).integers(0, V, (B, L))


def encoder_config(**options):
    """One layer: what takes two to show asks for them."""
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
def call(module, *inputs):
    """module(*inputs), compiled once a kind of module and a shape of inputs."""
    return module(*inputs)


def compiled(model):
    """The model as a function that is compiled once for each shape."""
    graphdef, state = nnx.split(model)
    call = jax.jit(lambda state, *args: nnx.merge(graphdef, state)(*args))
    return functools.partial(call, state)
