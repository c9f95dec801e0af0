"""An attention and its one size, as Table 1 of the paper names them: nystrom-64."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from flax import nnx

from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.attention.base import Attention
from nystromformer.config import ConfigError

TABLE_1 = ("softmax", "nystrom-32", "nystrom-64", "linformer-256", "longformer-256")


@dataclasses.dataclass(frozen=True)
class Variant:
    """label: NAME or NAME-SIZE; name and options as for `make_attention`."""

    label: str
    name: str
    options: dict[str, Any]

    def make(self, num_heads: int, head_dim: int, length: int) -> Attention:
        """The attention, with fresh parameters; ConfigError where it cannot be."""
        sizes = {"num_heads": num_heads, "head_dim": head_dim, "max_length": length}
        try:
            return make_attention(self.name, **sizes, rngs=nnx.Rngs(0), **self.options)
        except ValueError as error:
            raise ConfigError(f"{self.label} at {length:,}: {error}") from error


def every_label() -> list[str]:
    """The rows of Table 1, then each other attention of the table at its own size."""
    labels, named = [*TABLE_1], {label.partition("-")[0] for label in TABLE_1}
    for name, cls in ATTENTIONS.items():
        if name not in named:
            size = cls.defaults.get(cls.size_option or "")
            labels.append(f"{name}-{size}" if size else name)
    return labels


def parse_variants(labels: Sequence[str], changes: Sequence[str]) -> list[Variant]:
    """Attentions NAME or NAME-SIZE with their defaults, that size, and changes.

    A change NAME.OPTION=VALUE is for all sizes of that attention. ConfigError for what
    is unknown or of a wrong type.
    """
    changed: dict[str, dict[str, Any]] = {}
    for change in changes:
        match = re.fullmatch(r"([^.=]+)\.([^=]+)=(.*)", change)
        if not match:
            raise ConfigError(f"--option={change} is not ATTENTION.OPTION=VALUE")
        changed.setdefault(match[1], {})[match[2]] = _value(match[3])
    variants = [_parse_variant(label, changed) for label in dict.fromkeys(labels)]
    for name in changed.keys() - {variant.name for variant in variants}:
        raise ConfigError(f"--option={name}.…: none of the attentions is called {name}")
    return variants


def _parse_variant(label: str, changed: Mapping[str, dict[str, Any]]) -> Variant:
    name, size = label, ""
    if label not in ATTENTIONS:
        name, _, size = label.partition("-")
    try:
        check_attention(name, {})
        cls = ATTENTIONS[name]
        options = {**cls.defaults}
        if label != name:
            if not cls.size_option or not size.isdecimal():
                sized = [name for name, cls in ATTENTIONS.items() if cls.size_option]
                raise ValueError(f"sizes are {'-NUMBER, '.join(sized)}-NUMBER")
            options[cls.size_option] = int(size)
        options |= changed.get(name, {})
        check_attention(name, options)
    except ValueError as error:
        raise ConfigError(f"--attention={label}: {error}") from error
    return Variant(label, name, options)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
