"""An attention and its one size, as Table 1 of the paper names them: nystrom-64."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from flax import nnx

from nystromformer.attention import ATTENTIONS, check_attention, make_attention
from nystromformer.attention.base import Attention
from nystromformer.config import ConfigError

EVERY = (
    *("softmax", "nystrom-32", "nystrom-64", "linformer-256", "longformer-256"),
    *("performer-256", "reformer-64", "bigbird-64", "linear", "none"),
)


@dataclasses.dataclass(frozen=True)
class Variant:
    """label: NAME or NAME-SIZE; name and options as for `make_attention`."""

    label: str
    name: str
    options: dict[str, Any]

    def make(self, *, num_heads: int, head_dim: int, max_length: int) -> Attention:
        """The attention, with fresh parameters; ConfigError where it cannot be."""
        try:
            return make_attention(
                self.name,
                num_heads=num_heads,
                head_dim=head_dim,
                max_length=max_length,
                rngs=nnx.Rngs(0),
                **self.options,
            )
        except ValueError as error:
            raise ConfigError(f"{self.label} at {max_length:,}: {error}") from error


def parse_variants(labels: Sequence[str], changes: Sequence[str]) -> list[Variant]:
    """Attentions with the options of configs/defaults.py, their size, and changes.

    Args:
      labels: each NAME or NAME-SIZE.
      changes: each NAME.OPTION=VALUE, for all sizes of that attention.

    Raises:
      ConfigError: an unknown name or option, a value of the wrong type, a change of an
        attention that is not there, or a label twice.
    """
    changed: dict[str, dict[str, Any]] = {}
    for change in changes:
        path, equals, value = change.partition("=")
        name, dot, option = path.partition(".")
        if not (equals and dot):
            raise ConfigError(f"--option={change} is not ATTENTION.OPTION=VALUE")
        changed.setdefault(name, {})[option] = _value(value)
    variants = [_parse_variant(label, changed) for label in labels]
    if unused := changed.keys() - {variant.name for variant in variants}:
        raise ConfigError(
            f"--option={min(unused)}.…: none of the attentions is {min(unused)}"
        )
    if twice := {label for label in labels if labels.count(label) > 1}:
        raise ConfigError(f"--attention={min(twice)} is there twice")
    return variants


def _parse_variant(label: str, changed: dict[str, dict[str, Any]]) -> Variant:
    name, dash, size = label.partition("-")
    if name not in ATTENTIONS:
        raise ConfigError(
            f"unknown attention {name!r} in --attention={label}; known: "
            f"{', '.join(ATTENTIONS)}"
        )
    options = {**ATTENTIONS[name].defaults}
    if dash:
        size_option = ATTENTIONS[name].size_option
        if not size_option or not size.isdecimal():
            sized = [name for name, cls in ATTENTIONS.items() if cls.size_option]
            raise ConfigError(
                f"--attention={label}: sizes are {'-NUMBER, '.join(sized)}-NUMBER"
            )
        options[size_option] = int(size)
    options |= changed.get(name, {})
    try:
        check_attention(name, options)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return Variant(label, name, options)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
