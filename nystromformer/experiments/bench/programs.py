"""Attentions as compiled programs, with the compiler's costs."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.experiments.bench.flops import product_flops
from nystromformer.experiments.bench.variants import Variant
from nystromformer.training.devices import program_bytes

PASSES = ("forward", "forward+backward")

Cost = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """Something to measure.

    key: what tells it from others, as JSON.
    run: does it `steps` times and returns when that is done.
    cost: of one step, as of `compile_program`, where a compiler told.
    measured_peak: the bytes that a run takes, where not by the device or the process.
    peer: of the module `peers`, the same in PyTorch, or None.
    """

    key: dict[str, Any]
    run: Callable[[], Any]
    cost: Cost | None = None
    steps: int = 1
    measured_peak: Callable[[Callable[[], Any]], int | None] | None = None
    peer: Callable[[Any], "Program | None"] = lambda peers: None


def compile_program(function: Any, *args: Any) -> tuple[Any, Cost]:
    """Compiles a function that may be jitted already; nothing is run.

    Args:
      function, *args: of arrays or their `ShapeDtypeStruct`s, and pytrees of them.

    Returns:
      The program; and bytes by the compiler, operations of `product_flops` and seconds
      to compile. bytes_accessed is what its kernels read and write: the compiler takes
      a loop for one of its turns and sees nothing in calls of libraries.
    """
    start = time.perf_counter()
    jitted: Any = function if hasattr(function, "lower") else jax.jit(function)
    traced = jitted.trace(*args)
    compiled = traced.lower().compile()
    seconds = time.perf_counter() - start
    held = program_bytes(compiled)
    assert held is not None
    return compiled, {
        "argument_bytes": held.arguments,
        "output_bytes": held.outputs,
        "temp_bytes": held.temporaries,
        "peak_bytes": sum(held),  # all that is alive at once
        "bytes_accessed": (compiled.cost_analysis() or {}).get("bytes accessed"),
        "flops": product_flops(traced.jaxpr.jaxpr),
        "compile_seconds": seconds,
    }


def attention_program(
    variant: Variant, which_pass: str, inputs: Sequence[jax.Array]
) -> Program:
    """One attention's forward pass, or with the gradient of all inputs and parameters.

    The inputs are query, key, value and a cotangent of the output, [B, L, N, H].
    ConfigError where the attention does not fit the length.
    """
    batch_size, length, num_heads, head_dim = inputs[0].shape
    attention = variant.make(num_heads, head_dim, length)
    graphdef, params, rest = nnx.split(attention, nnx.Param, ...)

    def forward(rest: nnx.State, params: nnx.State, *qkv: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, rest)(*qkv)

    def both(rest: nnx.State, cotangent: jax.Array, *primals: Any) -> Any:
        output, pull = jax.vjp(lambda *x: forward(rest, *x), *primals)
        return output, pull(cotangent)

    *qkv, cotangent = inputs
    if which_pass == "forward":
        function, args = forward, (rest, params, *qkv)
    else:
        function, args = both, (rest, cotangent, params, *qkv)
    compiled, cost = compile_program(function, *args)
    key = {
        "what": which_pass,
        "attention": variant.label,
        "options": variant.options,
        "length": length,
        "batch_size": batch_size,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "dtype": str(inputs[0].dtype),
    }
    return Program(
        key,
        run=lambda: jax.block_until_ready(compiled(*args)),
        cost=cost,
        peer=lambda peers: peers.attention_peer(key, inputs),
    )


def matmul_program(dtype: str) -> Program:
    """A product of two large matrices: the operations a second of this machine."""
    size = 1024 if jax.default_backend() == "cpu" else 8192
    matrix = jax.random.normal(jax.random.key(0), (size, size), dtype)
    compiled, cost = compile_program(jnp.matmul, matrix, matrix)
    key = {"what": "matmul", "size": size, "dtype": dtype}
    return Program(key, lambda: jax.block_until_ready(compiled(matrix, matrix)), cost)


def copy_program(dtype: str) -> Program:
    """A copy of a large array: the bytes a second of this machine."""
    size = 2**24 if jax.default_backend() == "cpu" else 2**28
    arrays = [jnp.ones(size, dtype)]
    negative = jax.jit(jnp.negative, donate_argnums=0)  # no page is new
    compiled, cost = compile_program(negative, *arrays)

    def run() -> None:
        arrays.append(jax.block_until_ready(compiled(arrays.pop())))

    return Program({"what": "copy", "size": size, "dtype": dtype}, run, cost)
