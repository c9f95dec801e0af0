"""Every attention behind one signature: a file for each, and a line in ATTENTIONS."""

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


def register_attention(name: str, cls: type[Attention]) -> None:
    """Adds an attention of another package to the table.

    A module that is imported again registers its classes again. Raises ValueError if
    the name is taken, or for unknown `defaults`.
    """
    taken = ATTENTIONS.get(name, cls)
    if taken.__qualname__ != cls.__qualname__:
        raise ValueError(f"the name {name!r} is taken by {taken}")
    cls.check_options(cls.defaults)
    ATTENTIONS[name] = cls


def check_attention(name: str, options: Mapping[str, Any]) -> None:
    """Raises ValueError for an unknown attention, an unknown option or a wrong type."""
    if name not in ATTENTIONS:
        raise ValueError(f"unknown attention {name!r}; known: {', '.join(ATTENTIONS)}")
    ATTENTIONS[name].check_options(options)


def make_attention(
    name: str,
    *,
    num_heads: int,
    head_dim: int,
    max_length: int,
    rngs: nnx.Rngs,
    **options: Any,
) -> Attention:
    """The attention of that name for N heads of H and sequences up to max_length.

    Options left out take the defaults of the class, with which "nystrom" has no
    convolution of V; configs start from the paper's, in its `defaults`. Another option
    of every attention is `cross_attention`, which nystrom needs in cross attention
    with a mask: see `Attention`.

    Raises ValueError for an unknown name or option, listing the known ones, for
    invalid values, and for cross_attention where the attention has none.
    """
    check_attention(name, {})
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": max_length}
    return ATTENTIONS[name](**sizes, rngs=rngs, **options)
