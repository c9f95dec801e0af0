"""Every attention, behind one signature: one file each, one line in ATTENTIONS.

Each is an `nnx.Module` whose `__call__` has the signature that
`jax.nn.dot_product_attention`, `flax.nnx.MultiHeadAttention(attention_fn=…)` and
`flax.linen.MultiHeadDotProductAttention(attention_fn=…)` share.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from flax import nnx

from nystromformer.attention.base import Attention
from nystromformer.attention.bigbird import BigBirdAttention
from nystromformer.attention.efficient import EfficientAttention
from nystromformer.attention.identity import IdentityAttention
from nystromformer.attention.linear import LinearAttention
from nystromformer.attention.linformer import LinformerAttention
from nystromformer.attention.longformer import LongformerAttention
from nystromformer.attention.nystrom import NystromAttention
from nystromformer.attention.performer import PerformerAttention
from nystromformer.attention.reformer import ReformerAttention
from nystromformer.attention.softmax import SoftmaxAttention

ATTENTIONS: dict[str, type[Attention]] = {
    "nystrom": NystromAttention,
    "softmax": SoftmaxAttention,
    "bigbird": BigBirdAttention,
    "efficient": EfficientAttention,
    "linear": LinearAttention,
    "linformer": LinformerAttention,
    "longformer": LongformerAttention,
    "performer": PerformerAttention,
    "reformer": ReformerAttention,
    "identity": IdentityAttention,
}

_GIVEN_BY_THE_MODEL = {"self", "num_heads", "head_dim", "max_length", "rngs"}


def register_attention(
    name: str, cls: type[Attention], defaults: Mapping[str, Any] | None = None
) -> None:
    """Adds an attention of another package to the table, as in `--config=FILE:NAME`.

    `defaults` replaces those of the class. Raises ValueError where the name is taken,
    or for defaults that are no options.
    """
    if ATTENTIONS.get(name, cls) is not cls:
        raise ValueError(f"the name {name!r} is taken by {ATTENTIONS[name]}")
    if defaults is not None:
        cls.defaults = defaults
    ATTENTIONS[name] = cls
    try:
        check_attention(name, cls.defaults)
    except ValueError:
        del ATTENTIONS[name]
        raise


def attention_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of an attention, by name, with type and default."""
    if name not in ATTENTIONS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(ATTENTIONS)}")
    parameters = inspect.signature(ATTENTIONS[name].__init__).parameters
    return {
        name: option
        for name, option in parameters.items()
        if name not in _GIVEN_BY_THE_MODEL and option.kind is not option.VAR_KEYWORD
    }


def check_attention(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for an unknown attention, an unknown option or a wrong type."""
    known = attention_options(name)
    for option, value in options.items():
        if option not in known:
            raise ValueError(
                f"attention {name!r} has no option {option!r}; known: "
                f"{', '.join(known) or 'none'}"
            )
        wanted = known[option].annotation
        fits = isinstance(value, (int, float) if wanted is float else wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            raise ValueError(
                f"option {option!r} of attention {name!r} must be "
                f"{wanted.__name__}, got {value!r}"
            )


def make_attention(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int,
    rngs: nnx.Rngs,
    cross_attention: bool = False,
    **options: Any,
) -> Attention:
    """The attention of that name for N heads of H and sequences up to max_length.

    Options left out have the defaults of the class: "nystrom" then has no convolution
    of V, while configs take the paper's `conv_kernel_size=35`, as in its `defaults`.
    cross_attention: queries are of other tokens than keys. Where T = S the attention
    cannot see that, and would take the mask of keys for one of queries too.

    Raises ValueError for an unknown name or option, listing the known ones, for
    invalid values, and for cross attention where the attention has none.
    """
    check_attention(name, options)
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": max_length}
    attention = ATTENTIONS[name](**sizes, rngs=rngs, **options)
    if cross_attention and attention.self_attention_only:
        raise ValueError(f"{name} has no cross attention")
    attention.cross_attention = cross_attention
    return attention
