"""Layers that take nnx's arguments, or refuse those that they would not honour."""

import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer.encoder import Dense, LayerNorm


@pytest.mark.parametrize(
    "argument", [{"use_scale": False}, {"use_bias": False}, {"feature_axes": (-2, -1)}]
)
def test_layer_norm_refuses_what_it_does_not_honour(argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        LayerNorm(8, **argument, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("argument", [{"use_bias": False}, {"precision": "highest"}])
def test_dense_refuses_what_it_does_not_honour(argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        Dense(8, 4, **argument, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("dtype", [None, jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
def test_layers_give_the_dtypes_of_nnx(dtype, x_dtype):
    x = jnp.ones((2, 3, 8), x_dtype)
    norm = LayerNorm(8, dtype=dtype, rngs=nnx.Rngs(0))
    nnx_norm = nnx.LayerNorm(8, dtype=dtype, rngs=nnx.Rngs(0))
    assert norm(x).dtype == nnx_norm(x).dtype

    layer = Dense(8, 4, dtype=dtype, rngs=nnx.Rngs(0))
    nnx_layer = nnx.Linear(8, 4, dtype=dtype, rngs=nnx.Rngs(0))
    assert layer(x).dtype == nnx_layer(x).dtype
