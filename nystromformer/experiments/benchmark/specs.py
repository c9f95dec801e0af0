"""The attentions that are measured: their labels, options and names of rows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from nystromformer.attention import ATTENTIONS, find_attention
from nystromformer.attention.base import Attention
from nystromformer.errors import ConfigError
from nystromformer.open_groups import parse_value

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
        return {**find_class(self.name).config_defaults(), **self.changes}


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


def parse_attention(label: str, changes: Sequence[str] = ()) -> AttentionSpec:
    """Finds the attention and the options that a label and changes name.

    Args:
      label: NAME or NAME-SIZE: an attention with its defaults and perhaps that size;
        then, for this row alone, any number of ",OPTION=VALUE".
      changes: ATTENTION.OPTION=VALUE, each for that attention alone.

    Raises:
      ConfigError: for an unknown name or option, a value of a different type, and a
        change of the size that the label names: its row would have a wrong name.
    """
    name_and_size, *label_changes = label.split(",")
    name = name_and_size
    size = ""
    if name not in _names():  # A name may have a hyphen.
        name, _, size = name_and_size.partition("-")

    size_value: dict[str, Any] = {}
    label_values: dict[str, Any] = {}
    try:
        cls = find_class(name)
        if size and not cls.size_option:
            raise ValueError(f"{name} has no size: take --attention={name}")
        if size:
            size_value[str(cls.size_option)] = parse_value(size)
        for change in label_changes:
            option, _, value = change.partition("=")
            label_values[option] = parse_value(value)
        cls.check_options({**size_value, **label_values})
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error

    common_values = _parse_changes(name, cls, changes)
    for option in size_value.keys() & common_values.keys():
        raise ConfigError(
            f"--option={name}.{option}={common_values[option]}: --attention={label} "
            f"has a size; take --attention={name}-{common_values[option]}"
        )
    # The label's own option counts before --option.
    values = {**size_value, **common_values, **label_values}
    return AttentionSpec(label, name, values)


def _parse_changes(
    name: str, cls: type[Attention], changes: Sequence[str]
) -> dict[str, Any]:
    """The options of an attention that changes ATTENTION.OPTION=VALUE name."""
    values = {}
    for change in changes:
        key, _, value = change.partition("=")
        attention, _, option = key.partition(".")
        if attention != name:
            continue
        values[option] = parse_value(value)
        try:
            cls.check_options({option: values[option]})
        except ValueError as error:
            raise ConfigError(f"--option={change}: {error}") from error
    return values


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
