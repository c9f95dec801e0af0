"""The benchmark's programs of one attention: forward, and with the gradient."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from flax import nnx

from nystromformer.attention import ATTENTIONS
from nystromformer.attention.base import Attention
from nystromformer.attention.options import parse_value
from nystromformer.errors import ConfigError
from nystromformer.experiments.benchmark.timing import Program, compile_program
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

    `softmax` is cuDNN's kernel in half precision on an NVIDIA GPU, and else computes
    them in blocks, on an accelerator where they are more than 2²⁷. So its memory grows
    with the length and not with its square. No model takes this one: it is a row of the
    benchmark alone.
    """

    def attend_heads(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: jax.Array | None,
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

    label: NAME or NAME-SIZE, and then any number of ",OPTION=VALUE".
    name: a name in ATTENTIONS, or WHOLE_SOFTMAX.
    changes: the options that the command line names, by the label or by --option.
    """

    label: str
    name: str
    changes: dict[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """All options: the changes, and of the others those that configs start with."""
        return {**_find_class(self.name).config_defaults(), **self.changes}


def list_labels() -> list[str]:
    """Returns the rows of Table 1, then each other attention at its default size."""
    labels: list[str] = list(TABLE_1)
    names_in_table = {parse_attention(label).name for label in TABLE_1}
    for name, cls in ATTENTIONS.items():
        if name not in names_in_table:
            size = cls.config_defaults().get(cls.size_option or "")
            labels.append(f"{name}-{size}" if size else name)
    return labels


def parse_attention(label: str, changes: Sequence[str] = ()) -> AttentionSpec:
    """Finds the attention and the options that a label and changes name.

    Args:
      label: NAME or NAME-SIZE: an attention with its defaults and perhaps that size;
        then, for this row alone, any number of ",OPTION=VALUE".
      changes: ATTENTION.OPTION=VALUE, each for that attention alone.

    Raises:
      ConfigError: for an unknown name or option, or a value of another type.
    """
    name_and_size, *own_changes = label.split(",")
    name = name_and_size
    size = ""
    if name not in _table():  # A name may have a hyphen.
        name, _, size = name_and_size.partition("-")
    values: dict[str, Any] = {}
    try:
        cls = _find_class(name)
        if size and not cls.size_option:
            raise ValueError(f"{name} has no size: take --attention={name}")
        if size:
            values[str(cls.size_option)] = parse_value(size)
        for change in changes:
            key, _, value = change.partition("=")
            attention, _, option = key.partition(".")
            if attention == name:
                values[option] = parse_value(value)
        for change in own_changes:
            option, _, value = change.partition("=")
            values[option] = parse_value(value)
        cls.check_options(values)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return AttentionSpec(label, name, values)


def _table() -> dict[str, type[Attention]]:
    """The attentions that can be measured."""
    return {WHOLE_SOFTMAX: WholeSoftmaxAttention, **ATTENTIONS}


def _find_class(name: str) -> type[Attention]:
    """Returns the attention of that name, or raises ValueError."""
    table = _table()
    if name not in table:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(table)}")
    return table[name]


def name_row(label: str, options: Mapping[str, Any]) -> str:
    """Names a row, as in "nystrom-64, pinv=exact + convolution of 35".

    Args:
      label: of an AttentionSpec.
      options: all options with which it is measured.
    """
    parts = [x for x in label.split(",") if not x.startswith("conv_kernel_size=")]
    row_name = ", ".join(parts)
    if options.get("conv_kernel_size"):
        row_name += f" + convolution of {options['conv_kernel_size']}"
    return row_name


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
        baselines = [cudnn_baseline(x, inputs) for x in programs]
        if torch is not None:
            baselines.extend([torch.attention_baseline(x, inputs) for x in programs])
        programs.extend(x for x in baselines if x is not None)
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
        attention = _find_class(spec.name)(
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
    """Compiles a function to a call without arguments; also returns its bytes."""
    compiled, peak_bytes = compile_program(function, *args)

    def run() -> Any:
        result = compiled(*args)
        # A CPU would run calls that are not waited for at the same time.
        is_on_cpu = jax.default_backend() == "cpu"
        return jax.block_until_ready(result) if is_on_cpu else result

    return run, peak_bytes
