"""The benchmark's programs of one attention: forward, and with the gradient."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.attention.options import parse_value
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.timing import Program, compile_program

PASSES = ("forward", "forward+backward")
TABLE_1 = ("softmax", "nystrom-32", "nystrom-64", "linformer-256", "longformer-256")


class AttentionSpec(NamedTuple):
    """An attention that is measured.

    label: NAME or NAME-SIZE, as in "nystrom-64".
    name: a name in ATTENTIONS.
    changes: the options that the command line names, by the label or by --option.
    """

    label: str
    name: str
    changes: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """All options: the changes, and of the others those that configs start with."""
        return {**ATTENTIONS[self.name].config_defaults(), **self.changes}


def list_labels() -> list[str]:
    """Returns the rows of Table 1, then each other attention at its default size."""
    labels: list[str] = list(TABLE_1)
    names_in_table = {label.partition("-")[0] for label in TABLE_1}
    for name, cls in ATTENTIONS.items():
        if name not in names_in_table:
            size = cls.config_defaults().get(cls.size_option or "")
            labels.append(f"{name}-{size}" if size else name)
    return labels


def parse_attention(label: str, changes: Sequence[str] = ()) -> AttentionSpec:
    """Finds the attention and the options that a label and changes name.

    Args:
      label: NAME or NAME-SIZE: an attention with its defaults and perhaps that size.
      changes: ATTENTION.OPTION=VALUE, each for that attention alone.

    Raises:
      ConfigError: for an unknown name or option, or a value of another type.
    """
    name = label
    size = ""
    if label not in ATTENTIONS:  # a name may have a hyphen
        name, _, size = label.partition("-")
    values: dict[str, Any] = {}
    try:
        check_attention(name, {})
        size_option = ATTENTIONS[name].size_option
        if size and not size_option:
            raise ValueError(f"{name} has no size: take --attention={name}")
        if size:
            values[str(size_option)] = parse_value(size)
        for change in changes:
            key, _, value = change.partition("=")
            attention, _, option = key.partition(".")
            if attention == name:
                values[option] = parse_value(value)
        check_attention(name, values)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return AttentionSpec(label, name, values)


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
    """Yields the programs of each length, the shortest first, on random numbers.

    Args:
      specs: the attentions.
      lengths: numbers of tokens.
      torch: the module `torch_baselines`, to measure PyTorch's attention, too; or None.
      batch_size, num_heads, head_dim, dtype: of query, key and value.
    """
    for length in sorted(lengths):
        shape = (4, batch_size, length, num_heads, head_dim)
        inputs = list(jax.random.normal(jax.random.key(0), shape, dtype))
        programs: list[Program] = []
        for spec in specs:
            programs.extend(attention_programs(spec, inputs))
        if torch is not None:
            baselines = [torch.attention_baseline(x, inputs) for x in programs]
            programs.extend(x for x in baselines if x is not None)
        yield programs


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
        attention = make_attention(
            spec.name,
            num_heads=num_heads,
            head_dim=head_dim,
            max_length=length,
            rngs=nnx.Rngs(0),
            **spec.options,
        )
    except ValueError as error:
        raise ConfigError(f"{spec.label} at {length:,}: {error}") from error
    graphdef, params, rest = nnx.split(attention, nnx.Param, ...)

    @jax.jit
    def forward(params: nnx.State, *qkv: jax.Array) -> jax.Array:
        return nnx.merge(graphdef, params, rest)(*qkv, deterministic=True)

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
            "attention": spec.label,
            "options": spec.options,
            "length": length,
            "batch_size": batch_size,
            "num_heads": num_heads,
            "head_dim": head_dim,
            "dtype": str(inputs[0].dtype),
        }
        yield Program(key=key, run=run, peak_bytes=peak_bytes)


def _compile_run(function: Any, *args: Any) -> tuple[Any, int | None]:
    """A call of the compiled function that waits for its result, and its bytes."""
    compiled, peak_bytes = compile_program(function, *args)

    def run() -> Any:
        return jax.block_until_ready(compiled(*args))

    return run, peak_bytes
