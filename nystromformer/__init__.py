"""Nyströmformer in JAX and Flax: the attention, the encoder, and a trained run.

This needs jax, flax and numpy alone; `load_run` needs the extra [train].
"""

from typing import TYPE_CHECKING, Any

from nystromformer.attention import ATTENTIONS, make_attention, register_attention
from nystromformer.attention.nystrom import nystrom_attention
from nystromformer.encoder import Block, Encoder
from nystromformer.encoder_config import EncoderConfig
from nystromformer.heads import PairClassifier, SequenceClassifier

if TYPE_CHECKING:
    from nystromformer.experiments.trained_run import load_run

__all__ = [
    "ATTENTIONS",
    "Block",
    "Encoder",
    "EncoderConfig",
    "PairClassifier",
    "SequenceClassifier",
    "load_run",
    "make_attention",
    "nystrom_attention",
    "register_attention",
]


def __getattr__(name: str) -> Any:
    if name != "load_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from nystromformer.experiments.trained_run import load_run
    except ModuleNotFoundError as error:
        needed = "load_run needs pip install 'nystromformer-jax[train]'"
        raise ModuleNotFoundError(f"{needed}: {error}") from error
    return load_run
