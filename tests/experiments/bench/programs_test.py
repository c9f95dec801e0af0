"""What is compiled is the attention and its gradient; what it costs can be counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer.attention.softmax import softmax_attention
from nystromformer.experiments.bench.programs import (
    PASSES,
    attention_program,
    compile_program,
)
from nystromformer.experiments.bench.variants import parse_variants
from nystromformer.experiments.study.smooth import smooth_inputs


def test_the_cost_of_a_product_is_that_by_hand():
    x = jax.ShapeDtypeStruct((30, 70), jnp.float32)
    y = jax.ShapeDtypeStruct((70, 110), jnp.float32)
    _, cost = compile_program(jnp.matmul, x, y)
    assert cost["flops"] == 2 * 30 * 70 * 110
    assert cost["argument_bytes"] == 4 * (30 * 70 + 70 * 110)
    assert cost["output_bytes"] == 4 * 30 * 110
    parts = cost["argument_bytes"] + cost["output_bytes"] + cost["temp_bytes"]
    assert cost["peak_bytes"] == parts


@pytest.mark.parametrize("which_pass", PASSES)
def test_a_program_computes_attention_and_all_its_gradients(which_pass, monkeypatch):
    inputs = smooth_inputs(11, batch_size=2, num_heads=3, head_dim=5, count=4)
    outputs = []
    monkeypatch.setattr(jax, "block_until_ready", outputs.append)
    [variant] = parse_variants(["softmax"], [])
    program = attention_program(variant, which_pass, inputs)
    program.run()
    *qkv, cotangent = inputs
    expected, pull = jax.vjp(softmax_attention, *qkv)
    found = outputs[0] if which_pass == "forward" else outputs[0][0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    if which_pass == "forward+backward":
        _, *gradients = outputs[0][1]  # of parameters, then of query, key and value
        for ours, theirs in zip(gradients, pull(cotangent), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-5)
    sizes = {"length": 11, "batch_size": 2, "num_heads": 3, "head_dim": 5}
    assert (
        program.key.items() >= {**sizes, "what": which_pass, "dtype": "float32"}.items()
    )


def test_parameters_get_a_gradient_too():
    inputs, costs = smooth_inputs(64, num_heads=2, head_dim=4, count=4), {}
    for kernel in (0, 35):
        changes = [f"nystrom.conv_kernel_size={kernel}"]
        [variant] = parse_variants(["nystrom-8"], changes)
        costs[kernel] = attention_program(variant, "forward+backward", inputs).cost
    # The kernel [35, 2] goes in, and its gradient comes out.
    more = costs[35]["output_bytes"] - costs[0]["output_bytes"]
    assert 4 * 35 * 2 <= more <= 4 * 35 * 2 + 16
    assert costs[35]["argument_bytes"] - costs[0]["argument_bytes"] == 4 * 35 * 2
