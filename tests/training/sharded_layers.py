"""Layers whose sequence is spread over eight devices: their costs and their numbers."""

import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.encoder import SelfAttention
from nystromformer.encoder_config import EncoderConfig
from nystromformer.training.devices import DATA, SEQ, make_mesh, placement
from tests.tolerance import relative_error

NYSTROM: dict[str, Any] = {
    "num_landmarks": 16,
    "num_pinv_iters": 2,
    "conv_kernel_size": 35,
}


def costs() -> dict[str, dict[str, int]]:
    """The cost of a sequence, of one four times as long, and of that on two devices."""
    return {
        "short": cost(65_536, 8),
        "long": cost(262_144, 8),
        "long on fewer": cost(262_144, 2),
    }


def cost(length: int, num_devices: int) -> dict[str, int]:
    """The cost of Nyström attention and its gradients over the shards of a sequence.

    The program is compiled but not run.

    Args:
      length: of the one sequence.
      num_devices: how many parts the sequence has.

    Returns:
      communicated: the numbers that devices send to each other.
      temporaries: bytes on each device.
    """
    mesh = make_mesh(
        batch_size=1,
        length=length,
        sequence_parallelism=num_devices,
        devices=jax.devices()[:num_devices],
    )
    attention = make_attention(
        "nystrom",
        num_heads=2,
        head_dim=16,
        max_length=length,
        rngs=nnx.Rngs(0),
        **NYSTROM,
    )
    split = placement(mesh, DATA, SEQ)
    heads = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32, sharding=split)
    mask = jax.ShapeDtypeStruct((1, length), bool, sharding=split)

    @jax.jit
    def output_and_gradients(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array,
        cotangent: jax.Array,
    ) -> tuple[jax.Array, ...]:
        def forward(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            return attention(query, key, value, mask=mask[:, None, None])

        output, backward = jax.vjp(forward, query, key, value)
        results = (output, *backward(cotangent))
        return jax.lax.with_sharding_constraint(results, split)

    compiled = output_and_gradients.lower(heads, heads, heads, mask, heads).compile()
    usage = compiled.memory_analysis()
    assert usage is not None
    return {
        "communicated": numbers_communicated(compiled),
        "temporaries": usage.temp_size_in_bytes,
    }


def numbers_communicated(compiled: Any) -> int:
    """How many numbers a compiled program sends between devices."""
    collective = r"= (.*) (?:all-|collective-permute|reduce-scatter)\S*\("
    results = " ".join(re.findall(collective, compiled.as_text()))
    shapes = re.findall(r"\w\[([\d,]*)\]", results)
    total = 0
    for shape in shapes:
        dimensions = [int(dimension) for dimension in shape.split(",") if dimension]
        total += math.prod(dimensions)
    return total


def convolved_and_rotated() -> list[dict[str, float]]:
    """The results of `compare_with_one_device` on a short and on a long sequence."""
    return [compare_with_one_device(length) for length in (256, 2048)]


def compare_with_one_device(length: int) -> dict[str, float]:
    """Spreads a layer with a short convolution and rotary positions over eight devices.

    Each has one of two examples and one of four parts of the sequence.

    Args:
      length: of the sequences.

    Returns:
      error: how far the output and the gradients are from those on one device.
      communicated: the numbers that devices send to each other.
    """
    config = EncoderConfig(
        vocab_size=11,
        max_length=length,
        attention="linear",
        short_conv=7,
        positions="rotary",
    )
    layer = SelfAttention(config, rngs=nnx.Rngs(0))
    graphdef, weights = nnx.split(layer)
    x = np.random.default_rng(0).normal(size=(2, length, config.model_dim))
    mask = np.arange(length) < np.array([[length], [length - 3]])

    def run(mesh: Any) -> tuple[Any, int]:
        """Output and gradients on a mesh, and the numbers communicated."""
        split = placement(mesh, DATA, SEQ)

        @jax.jit
        def output_and_gradients(weights: Any, x: jax.Array, mask: jax.Array) -> Any:
            def forward(weights: Any, x: jax.Array) -> jax.Array:
                output = nnx.merge(graphdef, weights)(x, mask)
                return jnp.where(mask[:, :, None], output, 0)

            output, backward = jax.vjp(forward, weights, x)
            weights_gradient, x_gradient = backward(output)
            sequences = (output, x_gradient)
            sequences = jax.lax.with_sharding_constraint(sequences, split)
            return weights_gradient, sequences

        inputs = jax.device_put((np.float32(x), mask), split)
        compiled = output_and_gradients.lower(weights, *inputs).compile()
        return compiled(weights, *inputs), numbers_communicated(compiled)

    expected, _ = run(make_mesh(1, 1, devices=jax.devices()[:1]))
    actual, num_communicated = run(make_mesh(2, length, sequence_parallelism=4))
    errors = jax.tree.map(relative_error, actual, expected)
    error = float(np.max(jax.tree.leaves(errors)))  # NaN if one of them is
    return {"error": error, "communicated": num_communicated}
