"""What Nyström attention costs, counted by the compiler: a slower one fails here.

In units of the four large products, 2 · L · M · H a head each, and of the M³ of the 24
products of six iterations.
"""

import jax
import jax.numpy as jnp
import pytest

from nystromformer.attention.nystrom import nystrom_attention

pytestmark = pytest.mark.usefixtures("optimised")

N, H, M = 2, 32, 64
SHORT, LONG = 2048, 4096


def compiled(length, *, gradient, masked):
    """FLOPs, and bytes of temporaries."""

    def forward(query, key, value, mask):
        mask = mask if masked else None
        return nystrom_attention(query, key, value, mask=mask, num_landmarks=M)

    def backward(*args):
        return jax.grad(lambda *args: forward(*args).sum(), (0, 1, 2))(*args)

    x = jax.ShapeDtypeStruct((1, length, N, H), jnp.float32)
    mask = jax.ShapeDtypeStruct((1, 1, 1, length), jnp.bool_)
    program = jax.jit(backward if gradient else forward).lower(x, x, x, mask).compile()
    cost, memory = program.cost_analysis(), program.memory_analysis()
    assert cost is not None
    return cost["flops"], memory.temp_size_in_bytes


@pytest.mark.parametrize("masked", [False, True])
def test_operations_and_memory_of_a_token_and_of_the_inverse(masked):
    products = 6 if masked else 4  # a mask makes two more, of the landmarks

    def costs(gradient):
        return [compiled(n, gradient=gradient, masked=masked) for n in (SHORT, LONG)]

    def slope(costs, i):
        return (costs[1][i] - costs[0][i]) / (LONG - SHORT) / N

    def constant(costs):
        return (2 * costs[0][0] - costs[1][0]) / N

    a_product, a_row = 2 * M * H, 4 * M  # FLOPs; bytes of a row of [T, M]
    forward = costs(gradient=False)
    assert 1 <= slope(forward, 0) / (products * a_product) < 1.06
    assert 1 <= constant(forward) / (24 * 2 * M**3) < 1.1
    assert slope(forward, 1) / a_row < (3.6 if masked else 2.1)
    if masked:
        backward = costs(gradient=True)
        assert 1 <= slope(backward, 0) / (3 * 4 * a_product) < 1.4
        assert 1 <= constant(backward) / (3 * 24 * 2 * M**3) < 1.1
        assert slope(backward, 1) / a_row < 5.1
