"""Every attention behind one signature: a file for each, and a line in ATTENTIONS."""

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


def register_attention(
    name: str, cls: type[Attention], defaults: Mapping[str, Any] | None = None
) -> None:
    """Adds an attention of another package to the table.

    `defaults` replaces those of the class. A module that is imported again registers
    its classes again. Raises ValueError if the name is taken, or for unknown defaults.
    """
    taken = ATTENTIONS.get(name, cls)
    if taken.__qualname__ != cls.__qualname__:
        raise ValueError(f"the name {name!r} is taken by {taken}")
    if defaults is not None:
        cls.defaults = defaults
    ATTENTIONS[name] = cls
    check_attention(name, cls.defaults)


def attention_options(name: str) -> dict[str, inspect.Parameter]:
    """The options of an attention, by name, with type and default."""
    if name not in ATTENTIONS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(ATTENTIONS)}")
    parameters = inspect.signature(ATTENTIONS[name].__init__).parameters
    return {x: y for x, y in parameters.items() if y.default is not y.empty}


def check_attention(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for an unknown attention, an unknown option or a wrong type."""
    known = attention_options(name)
    for option, value in options.items():
        if option not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"{name!r} has no option {option!r}; known: {names}")
        wanted = known[option].annotation
        fits = isinstance(value, (int, float) if wanted is float else wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            named = f"option {option!r} of attention {name!r}"
            raise ValueError(f"{named} must be {wanted.__name__}, got {value!r}")


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

    Options left out take the defaults of `__init__`, with which "nystrom" has no
    convolution of V; configs start from the paper's, in the `defaults` of the class.
    With cross_attention queries belong to other tokens than keys; where T = S this
    cannot be seen from the arrays, and the mask of keys would exclude queries too.

    Raises ValueError for an unknown name or option, listing the known ones, for
    invalid values, and for cross_attention where the attention has none.
    """
    check_attention(name, options)
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": max_length}
    attention = ATTENTIONS[name](**sizes, rngs=rngs, **options)
    if cross_attention and attention.self_attention_only:
        raise ValueError(f"{name} has no cross attention")
    attention.cross_attention = cross_attention
    return attention
