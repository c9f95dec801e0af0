"""Nyströmformer in JAX and Flax: the attention, the encoder, and a trained run.

Each public name is imported when it is first used, so that what needs no model, such as
the report on finished runs, loads none. The package needs jax, flax and numpy alone;
`load_run` needs the extra [train], `diagnose` also [report].
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nystromformer.attention import ATTENTIONS, make_attention, register_attention
    from nystromformer.attention.nystrom import nystrom_attention
    from nystromformer.classifiers import PairClassifier, SequenceClassifier
    from nystromformer.encoder import Block, Encoder
    from nystromformer.encoder_config import EncoderConfig
    from nystromformer.experiments.approximation.diagnosis import diagnose as diagnose
    from nystromformer.experiments.trained_run import load_run as load_run

# Without the names that need an extra, for `from nystromformer import *`.
__all__ = [
    "ATTENTIONS",
    "Block",
    "Encoder",
    "EncoderConfig",
    "PairClassifier",
    "SequenceClassifier",
    "make_attention",
    "nystrom_attention",
    "register_attention",
]

_MODULES = {
    "ATTENTIONS": "nystromformer.attention",
    "Block": "nystromformer.encoder",
    "Encoder": "nystromformer.encoder",
    "EncoderConfig": "nystromformer.encoder_config",
    "PairClassifier": "nystromformer.classifiers",
    "SequenceClassifier": "nystromformer.classifiers",
    "diagnose": "nystromformer.experiments.approximation.diagnosis",
    "load_run": "nystromformer.experiments.trained_run",
    "make_attention": "nystromformer.attention",
    "nystrom_attention": "nystromformer.attention.nystrom",
    "register_attention": "nystromformer.attention",
}
_EXTRAS = {"diagnose": "train,report", "load_run": "train"}


def __getattr__(name: str) -> Any:
    """Imports a public name; Python calls this for those that are not there yet."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"{name} needs `pip install '.[{_EXTRAS[name]}]'` in the folder of "
            f"nystromformer-jax: {error}"
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_MODULES))
