"""The memory of every attention grows with the length, and not with its square."""

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import find_attention
from tests.attention.cases import H
from tests.attention.contract_test import having


def memory_growth(make_attention):
    """The memory of the gradient at 8,192 tokens, divided by that at 4,096."""

    def temporary_bytes(length):
        attend = make_attention(length)

        def total(query, key, value):
            return attend(query, key, value).sum()

        x = jax.ShapeDtypeStruct((1, length, 1, H), jnp.float32)
        gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
        memory = gradient.lower(x, x, x).compile().memory_analysis()
        return memory.temp_size_in_bytes

    return temporary_bytes(8192) / max(temporary_bytes(4096), 1024)


@having("linear memory")
def test_attention_memory_is_linear_in_length(name):
    """With the default options."""

    def make_default(length):
        return find_attention(name)(
            num_heads=1, head_dim=H, max_length=length, rngs=nnx.Rngs(0)
        )

    assert memory_growth(make_default) <= 2.2


def test_memory_of_exact_attention_is_not_linear_in_length():
    assert memory_growth(lambda length: jax.nn.dot_product_attention) > 2.2
