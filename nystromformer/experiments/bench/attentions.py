"""Attentions as the benchmark names them, nystrom-64, and their compiled passes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.config import ConfigError
from nystromformer.experiments.bench.measure import Program, compile_program

PASSES = ("forward", "forward+backward")
TABLE_1 = ("softmax", "nystrom-32", "nystrom-64", "linformer-256", "longformer-256")


class AttentionSpec(NamedTuple):
    """label: NAME or NAME-SIZE; name and options as for `make_attention`."""

    label: str
    name: str
    options: dict[str, Any]


def all_labels() -> list[str]:
    """The rows of Table 1, then each other attention of the table at its own size."""
    named = {label.partition("-")[0] for label in TABLE_1}
    others = {x: cls for x, cls in ATTENTIONS.items() if x not in named}
    sizes = {x: cls.defaults.get(cls.size_option or "") for x, cls in others.items()}
    return [*TABLE_1, *(f"{x}-{size}" if size else x for x, size in sizes.items())]


def parse_attention(label: str, changes: Sequence[str] = ()) -> AttentionSpec:
    """NAME or NAME-SIZE with the attention's defaults, that size, and changes.

    A change ATTENTION.OPTION=VALUE is for that attention alone. ConfigError for an
    unknown name or option, or a wrong type.
    """
    name, _, size = (label, "", "") if label in ATTENTIONS else label.partition("-")
    try:
        check_attention(name, {})
        options = {**ATTENTIONS[name].defaults}
        if size:
            options[ATTENTIONS[name].size_option or "size"] = json.loads(size)
        for change in changes:
            key, _, value = change.partition("=")
            if key.startswith(f"{name}."):
                options[key.removeprefix(f"{name}.")] = json.loads(value)
        check_attention(name, options)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return AttentionSpec(label, name, options)


def attention_groups(
    specs: Sequence[AttentionSpec],
    lengths: Sequence[int],
    torch: Any = None,
    *,
    batch_size: int = 1,
    num_heads: int,
    head_dim: int,
    dtype: str = "float32",
) -> Iterator[list[Program]]:
    """The programs of each length, shortest first, on random numbers.

    `torch` is the module `torch_baselines`.
    """
    for length in sorted(lengths):
        shape = (4, batch_size, length, num_heads, head_dim)
        inputs = [*jax.random.normal(jax.random.key(0), shape, dtype)]
        ours = [x for spec in specs for x in attention_programs(spec, inputs)]
        theirs = [torch.attention_baseline(x, inputs) for x in ours if torch]
        yield [*ours, *filter(None, theirs)]


def attention_programs(
    spec: AttentionSpec, inputs: Sequence[jax.Array]
) -> Iterator[Program]:
    """The forward pass, and with it the gradient of all inputs and parameters.

    The inputs are query, key, value and a cotangent of the output, [B, L, N, H].
    ConfigError where the attention does not fit the length.
    """
    batch_size, length, num_heads, head_dim = inputs[0].shape
    sizes = {"num_heads": num_heads, "head_dim": head_dim}
    given = {**sizes, "max_length": length, "rngs": nnx.Rngs(0), **spec.options}
    try:
        attention = make_attention(spec.name, **given)
    except ValueError as error:
        raise ConfigError(f"{spec.label} at {length:,}: {error}") from error
    graphdef, params, rest = nnx.split(attention, nnx.Param, ...)

    @jax.jit
    def forward(params: nnx.State, *qkv: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, rest)(*qkv)

    @jax.jit
    def both(cotangent: jax.Array, *primals: Any) -> Any:
        output, pull = jax.vjp(forward, *primals)
        return output, pull(cotangent)

    *qkv, cotangent = inputs
    key = {"attention": spec.label, "options": spec.options, "length": length}
    key |= {"batch_size": batch_size, **sizes, "dtype": str(inputs[0].dtype)}
    for what, function, args in (
        (PASSES[0], forward, (params, *qkv)),
        (PASSES[1], both, (cotangent, params, *qkv)),
    ):
        compiled, size = compile_program(function, *args)

        def run(compiled: Any = compiled, args: Any = args) -> Any:
            return jax.block_until_ready(compiled(*args))

        yield Program({"what": what, **key}, run, size)
