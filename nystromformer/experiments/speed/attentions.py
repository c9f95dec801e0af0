"""The attentions that are measured: their labels and options, and their programs.

A label is NAME or NAME-SIZE, and then any number of ",OPTION=VALUE".
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
from flax import nnx

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.attention.base import Attention
from nystromformer.by_layer import parse_value
from nystromformer.errors import ConfigError
from nystromformer.experiments.provenance import num_cores
from nystromformer.experiments.speed.rows import RowKey
from nystromformer.experiments.speed.timing import (
    Program,
    compile_program,
    wait_on_cpu,
)
from nystromformer.fused import can_fuse

PASSES = ("forward", "forward+backward")

WHOLE_SOFTMAX = "softmax_all_scores"
# Exact attention twice, and Nyström attention with its convolution of V and without it.
TABLE_1 = (
    WHOLE_SOFTMAX,
    "softmax",
    "nystrom-32,conv_kernel_size=0",
    "nystrom-64,conv_kernel_size=0",
    "nystrom-32",
    "nystrom-64",
    "linformer-256",
    "longformer-256",
)


class WholeSoftmaxAttention(Attention):
    """Exact attention whose [T, S] scores all exist at once, as in the paper's Table 1.

    It is a row of the benchmark; no model can have it. The notes of the benchmark's
    page say how `softmax` differs.
    """

    def attend_heads(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
        query_mask: jax.Array | None,
        precision: jax.lax.PrecisionLike,
    ) -> jax.Array:
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None, None, :],
            implementation="xla",
        )


class AttentionSpec(NamedTuple):
    """An attention that is measured.

    label: as the module's docstring says.
    name: a name in ATTENTIONS, or WHOLE_SOFTMAX.
    changes: the options that the label names, its size among them.
    """

    label: str
    name: str
    changes: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """All options: the changes, and of the others those that configs start with."""
        return {**find_class(self.name).config_defaults(), **self.changes}


class Pass(NamedTuple):
    """A pass of an attention, not yet compiled.

    key: what it is, for the JSON of the benchmark.
    function: the jitted function.
    arguments: what the function is called with.
    """

    key: RowKey
    function: Any
    arguments: tuple[Any, ...]


def list_labels() -> list[str]:
    """Returns the rows of Table 1, then each other attention at its default size."""
    labels: list[str] = list(TABLE_1)
    names_in_table = {parse_attention(label).name for label in TABLE_1}
    for name in ATTENTIONS:
        if name not in names_in_table:
            cls = find_attention(name)
            size = cls.config_defaults().get(cls.size_option or "")
            labels.append(f"{name}-{size}" if size else name)
    return labels


def parse_attention(label: str) -> AttentionSpec:
    """Finds the attention and the options that a label names.

    Raises:
      ConfigError: for an unknown name or option, or a value of a different type.
    """
    name_and_size, *changes = label.split(",")
    name = name_and_size
    size = ""
    if name not in _names():  # A name may have a hyphen.
        name, _, size = name_and_size.partition("-")

    values: dict[str, Any] = {}
    try:
        cls = find_class(name)
        if size and not cls.size_option:
            raise ValueError(f"{name} has no size: take --attention={name}")
        if size:
            values[str(cls.size_option)] = parse_value(size)
        for change in changes:
            option, _, value = change.partition("=")
            values[option] = parse_value(value)
        cls.check_options(values)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return AttentionSpec(label, name, values)


def _names() -> list[str]:
    """The names of the attentions that can be measured."""
    return [WHOLE_SOFTMAX, *ATTENTIONS]


def find_class(name: str) -> type[Attention]:
    """Returns the class of an attention that can be measured.

    Raises:
      ValueError: for an unknown name.
    """
    if name == WHOLE_SOFTMAX:
        return WholeSoftmaxAttention
    if name not in ATTENTIONS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(_names())}")
    return find_attention(name)


def name_row(label: str, options: Mapping[str, Any]) -> str:
    """Names a row, as in "nystrom-64, pinv=exact + convolution of 35".

    Args:
      label: the label of an AttentionSpec.
      options: all options with which it is measured.
    """
    parts = [x for x in label.split(",") if not x.startswith("conv_kernel_size=")]
    row_name = ", ".join(parts)
    if options.get("conv_kernel_size"):
        row_name += f" + convolution of {options['conv_kernel_size']}"
    return row_name


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
    dtypes: Sequence[str] = ("float32",),
) -> Iterator[list[Program]]:
    """Yields the programs of each length, the shortest first, on random numbers.

    Args:
      specs: the attentions.
      lengths: numbers of tokens.
      baselines: functions that make programs of other libraries.
      batch_size, num_heads, head_dim: those of query, key and value.
      dtypes: each attention is measured in all of these.
    """
    for length in sorted(lengths):
        shape = (4, batch_size, length, num_heads, head_dim)
        our_programs: list[Program] = []
        baseline_programs: list[Program] = []
        for dtype in dtypes:
            inputs = list(jax.random.normal(jax.random.key(0), shape, dtype))
            programs = attention_programs(specs, inputs)
            our_programs.extend(programs)
            for make_baseline in baselines:
                for program in programs:
                    baseline = make_baseline(program, inputs)
                    if baseline is not None:
                        baseline_programs.append(baseline)
        yield our_programs + baseline_programs


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
    if program.key.attention != "softmax" or not can_fuse(*qkv):
        return None

    @jax.jit
    def forward(*qkv: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*qkv, implementation="cudnn")

    @jax.jit
    def forward_and_backward(cotangent: jax.Array, *qkv: jax.Array) -> Any:
        output, pull_back = jax.vjp(forward, *qkv)
        return output, pull_back(cotangent)

    key = dataclasses.replace(program.key, attention="cudnn-softmax", options={})
    if program.key.what == "forward":
        return _compile_pass(Pass(key, forward, tuple(qkv)))
    return _compile_pass(Pass(key, forward_and_backward, (cotangent, *qkv)))


def attention_programs(
    specs: Sequence[AttentionSpec], inputs: Sequence[jax.Array]
) -> list[Program]:
    """Makes of each attention the forward pass, and it with the gradient of all inputs.

    The programs are compiled side by side: that takes longer than to measure them.

    Args:
      specs: the attentions.
      inputs: query, key, value and a cotangent of the output, [B, L, N, H].

    Raises:
      ConfigError: if an attention does not fit the length.
    """
    passes: list[Pass] = []
    for spec in specs:
        passes.extend(make_passes(spec, inputs))
    with ThreadPoolExecutor(num_cores()) as pool:
        return list(pool.map(_compile_pass, passes))


def make_passes(spec: AttentionSpec, inputs: Sequence[Any]) -> Iterator[Pass]:
    """Yields the forward pass of an attention, and it with the gradient of all inputs.

    Args:
      spec: the attention.
      inputs: query, key, value and a cotangent of the output, [B, L, N, H], or their
        shapes and dtypes.

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
    key = RowKey(
        what="forward",
        attention=name_row(spec.label, spec.options),
        options=spec.options,
        length=length,
        batch_size=batch_size,
        num_heads=num_heads,
        head_dim=head_dim,
        dtype=str(inputs[0].dtype),
    )
    yield Pass(key, forward, (params, *qkv))
    key = dataclasses.replace(key, what="forward+backward")
    yield Pass(key, forward_and_backward, (cotangent, params, *qkv))


def _compile_pass(part: Pass) -> Program:
    """The program that runs a pass."""
    compiled = compile_program(part.function, *part.arguments)

    def run() -> Any:
        result = compiled.call(*part.arguments)
        wait_on_cpu(result)
        return result

    return Program(
        key=part.key, run=run, peak_bytes=compiled.peak_bytes, path=compiled.path
    )
