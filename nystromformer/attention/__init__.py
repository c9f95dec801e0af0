"""Every attention behind one signature: a file for each, and a line in ATTENTIONS."""

import importlib
from collections.abc import Mapping
from typing import Any

from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.validation import is_same_class

# Name -> "module:class", or the class of an attention that was registered.
ATTENTIONS: dict[str, str | type[Attention]] = {
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


def register_attention(name: str, cls: type[Attention]) -> None:
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


def find_attention(name: str) -> type[Attention]:
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


def make_attention(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int,
    rngs: nnx.Rngs,
    **options: Any,
) -> Attention:
    """Makes the attention of that name.

    The options and their defaults; the docstrings of the classes explain them:

        nystrom     num_landmarks=64, num_pinv_iters=6, conv_kernel_size=0,
                    landmark_padding="mask", landmarks="segment_means",
                    landmark_seed=0, pinv="iterative", pinv_init="per_matrix",
                    pinv_kernel=False, fused=False
        softmax     dropout_rate=0.0, fused=True
        bigbird     block_size=64, num_random_blocks=3
        efficient   none
        linear      none
        linformer   projection_dim=256, sharing="key_value"
        longformer  window=256
        performer   num_features=256, kernel="softmax", redraw_features=False
        reformer    num_hashes=2, bucket_size=64, lsh_scope="bucket",
                    redraw_hashes=False
        identity    none

    Configs start from the options of the paper's experiments instead, `paper_options`
    of each class: "nystrom" with conv_kernel_size=35 and "softmax" with
    dropout_rate=0.1.

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
