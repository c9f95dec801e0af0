"""The programs of attentions that are timed: forward, and with the gradient."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.specs import (
    AttentionSpec,
    find_class,
    name_row,
)
from nystromformer.experiments.benchmark.timing import (
    Program,
    compile_program,
    wait_on_cpu,
)
from nystromformer.fused import can_fuse

PASSES = ("forward", "forward+backward")

# Makes another library's program to stand beside one of ours with the same inputs; None
# where the library has no such program.
MakeAttentionBaseline = Callable[[Program, Sequence[jax.Array]], Program | None]


def attention_groups(
    specs: Sequence[AttentionSpec],
    lengths: Sequence[int],
    baselines: Sequence[MakeAttentionBaseline] = (),
    *,
    batch_size: int = 1,
    num_heads: int,
    head_dim: int,
    dtype: str = "float32",
) -> Iterator[list[Program]]:
    """Yields the programs of each length, the shortest first, on random numbers.

    Args:
      specs: the attentions.
      lengths: numbers of tokens.
      baselines: functions that make programs of other libraries.
      batch_size, num_heads, head_dim, dtype: those of query, key and value.
    """
    for length in sorted(lengths):
        shape = (4, batch_size, length, num_heads, head_dim)
        inputs = list(jax.random.normal(jax.random.key(0), shape, dtype))
        our_programs: list[Program] = []
        for spec in specs:
            our_programs.extend(attention_programs(spec, inputs))

        programs = list(our_programs)
        for make_baseline in baselines:
            for program in our_programs:
                baseline = make_baseline(program, inputs)
                if baseline is not None:
                    programs.append(baseline)
        yield programs


def cudnn_baseline(program: Program, inputs: Sequence[jax.Array]) -> Program | None:
    """Makes cuDNN's attention, as JAX itself calls it, to stand beside softmax.

    Args:
      program: the program of ours beside which it stands.
      inputs: its query, key, value and cotangent, [B, L, N, H].

    Returns:
      The program; None beside other attentions, and where cuDNN is missing or does not
      take these inputs.
    """
    *qkv, cotangent = inputs
    if program.key["attention"] != "softmax" or not can_fuse(*qkv):
        return None

    @jax.jit
    def forward(*qkv: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*qkv, implementation="cudnn")

    @jax.jit
    def forward_and_backward(cotangent: jax.Array, *qkv: jax.Array) -> Any:
        output, pull_back = jax.vjp(forward, *qkv)
        return output, pull_back(cotangent)

    if program.key["what"] == "forward":
        run, peak_bytes = _compile_run(forward, *qkv)
    else:
        run, peak_bytes = _compile_run(forward_and_backward, cotangent, *qkv)
    key = {**program.key, "attention": "cudnn-softmax", "options": {}}
    return Program(key=key, run=run, peak_bytes=peak_bytes)


def attention_programs(
    spec: AttentionSpec, inputs: Sequence[jax.Array]
) -> Iterator[Program]:
    """Yields the forward pass, and with it the gradient of inputs and parameters.

    Args:
      spec: the attention.
      inputs: query, key, value and a cotangent of the output, [B, L, N, H].

    Raises:
      ConfigError: if the attention does not fit the length.
    """
    batch_size, length, num_heads, head_dim = inputs[0].shape
    try:
        attention = find_class(spec.name)(
            num_heads=num_heads,
            head_dim=head_dim,
            max_length=length,
            rngs=nnx.Rngs(0),
            **spec.options,
        )
    except ValueError as error:
        raise ConfigError(f"{spec.label} at {length:,}: {error}") from error
    graphdef, params, other_state = nnx.split(attention, nnx.Param, ...)

    @jax.jit
    def forward(params: nnx.State, *qkv: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, other_state)(*qkv, deterministic=True)

    @jax.jit
    def forward_and_backward(cotangent: jax.Array, *primals: Any) -> Any:
        output, pull_back = jax.vjp(forward, *primals)
        return output, pull_back(cotangent)

    *qkv, cotangent = inputs
    arguments = {
        "forward": (forward, params, *qkv),
        "forward+backward": (forward_and_backward, cotangent, params, *qkv),
    }
    for name in PASSES:
        run, peak_bytes = _compile_run(*arguments[name])
        key = {
            "what": name,
            "attention": name_row(spec.label, spec.options),
            "options": spec.options,
            "length": length,
            "batch_size": batch_size,
            "num_heads": num_heads,
            "head_dim": head_dim,
            "dtype": str(inputs[0].dtype),
        }
        yield Program(key=key, run=run, peak_bytes=peak_bytes)


def _compile_run(function: Any, *args: Any) -> tuple[Any, int | None]:
    """Compiles a function for its arguments.

    Returns:
      A function without arguments that calls it, and the bytes that it needs.
    """
    compiled, peak_bytes = compile_program(function, *args)

    def run() -> Any:
        result = compiled(*args)
        wait_on_cpu(result)
        return result

    return run, peak_bytes
