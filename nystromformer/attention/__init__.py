"""Every attention behind one signature: a file for each, and a line in ATTENTIONS."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nystromformer.validation import is_same_class

# A module is imported when its attention is named, so that who needs the names alone,
# as a report on finished runs, loads no model.
if TYPE_CHECKING:
    from flax import nnx

    from nystromformer.attention.base import Attention

# Name -> "module:class", or the class of an attention that was registered.
ATTENTIONS: dict[str, "str | type[Attention]"] = {
    "nystrom": "nystromformer.attention.nystrom:NystromAttention",
    "softmax": "nystromformer.attention.softmax:SoftmaxAttention",
    "bigbird": "nystromformer.attention.bigbird:BigBirdAttention",
    "efficient": "nystromformer.attention.efficient:EfficientAttention",
    "linear": "nystromformer.attention.linear:LinearAttention",
    "linformer": "nystromformer.attention.linformer:LinformerAttention",
    "longformer": "nystromformer.attention.longformer:LongformerAttention",
    "performer": "nystromformer.attention.performer:PerformerAttention",
    "reformer": "nystromformer.attention.reformer:ReformerAttention",
    "identity": "nystromformer.attention.identity:IdentityAttention",
}

# Keys of the group `attention` of every config, which no option may have as its name.
CONFIG_KEYS = ("name", "options", "by_layer")


def register_attention(name: str, cls: "type[Attention]") -> None:
    """Adds an attention of another package to the table.

    A module may be imported twice, from two places, and a cell of a notebook may be run
    again: a class replaces one of the same qualified name, unless it is written in a
    file with a different name.

    Args:
      name: the name that configs and `make_attention` shall know it by.
      cls: the class, with its options as keyword arguments of `__init__`.

    Raises:
      ValueError: another class has the name, an option has the name of a key of every
        config, or `paper_options` has an unknown option or a wrong type.
    """
    if name in ATTENTIONS:
        registered = find_attention(name)
        if not is_same_class(registered, cls):
            raise ValueError(f"the name {name!r} is taken by {registered}")
    for option in cls.options():
        if option in CONFIG_KEYS:
            raise ValueError(
                f"{cls.__name__} has an option {option!r}, which is a key of the group "
                "attention in every config: give it another name"
            )
    cls.check_options(cls.config_defaults())
    ATTENTIONS[name] = cls


def find_attention(name: str) -> "type[Attention]":
    """Finds the class of a name in `ATTENTIONS`, and imports its module if need be.

    Raises:
      ValueError: an unknown name.
    """
    if name not in ATTENTIONS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(ATTENTIONS)}")
    attention = ATTENTIONS[name]
    if isinstance(attention, str):
        module, _, class_name = attention.partition(":")
        attention = getattr(importlib.import_module(module), class_name)
    return attention


def check_attention(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for an unknown attention, an unknown option or a wrong type."""
    find_attention(name).check_options(options)


def print_attentions() -> None:
    """Prints a line for each attention: its name, its options and their defaults.

    Configs start from the options of the paper's experiments instead. Where these are
    not the defaults, another line has them.
    """
    for name in ATTENTIONS:
        cls = find_attention(name)
        options = []
        for option, parameter in cls.options().items():
            has_default = parameter.default is not parameter.empty
            options.append(f"{option}={parameter.default!r}" if has_default else option)
        print(f"{name}: {', '.join(options) or 'no options'}")
        if cls.paper_options:
            paper = [f"{option}={x!r}" for option, x in cls.paper_options.items()]
            print(f"    in configs {', '.join(paper)}")


def make_attention(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int,
    rngs: "nnx.Rngs",
    **options: Any,
) -> "Attention":
    """Makes the attention of that name.

    `print_attentions` prints the names, and the options of each with their defaults;
    the docstrings of the classes explain them.

    Args:
      name: a name in `ATTENTIONS`.
      num_heads: N.
      head_dim: H.
      max_length: the length of the longest sequence that it will see.
      rngs: the keys for the initial values of parameters.
      **options: the options of that attention.

    Returns:
      The attention, to be called as `Attention.__call__` says.

    Raises:
      ValueError: an unknown name or option, or an invalid value.
    """
    check_attention(name, options)
    return find_attention(name)(
        num_heads=num_heads,
        head_dim=head_dim,
        max_length=max_length,
        rngs=rngs,
        **options,
    )
