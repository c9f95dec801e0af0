"""The groups of a config that have a name, and the options that belong to it."""

import dataclasses
import json
from typing import Any

from nystromformer.attention import find_attention
from nystromformer.encoder_config import add_default_options


@dataclasses.dataclass(frozen=True)
class OpenGroup:
    """A name and the options that belong to it, which are attributes, too."""

    name: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getattr__(self, key: str) -> Any:
        # copy and pickle look up attributes before there are options.
        options = vars(self).get("options", {})
        if key not in options:
            names = ", ".join(options)
            raise AttributeError(f"no option {key!r}; there are: {names}")
        return options[key]


@dataclasses.dataclass(frozen=True)
class TaskConfig(OpenGroup):
    """The task, and the folder of its data, which says nothing about a run."""

    data_dir: str | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class AttentionConfig(OpenGroup):
    """The attention of all layers, and settings of single layers that differ.

    by_layer: text for `parse_by_layer`, such as "0=softmax 3.num_landmarks=128".
    """

    by_layer: str | None = None

    def __str__(self) -> str:
        return f"{self.name} (layers: {self.by_layer})" if self.by_layer else self.name

    def layer_settings(self) -> dict[int, dict[str, Any]]:
        """Returns the settings of single layers, as `attentions_by_layer` takes them.

        A layer with a different attention starts from the options of that attention in
        configs.

        Raises:
          ValueError: for a text that `parse_by_layer` refuses, or an unknown attention.
        """
        by_layer = parse_by_layer(self.by_layer or "")
        return add_default_options(self.name, by_layer, _options_in_configs)


def _options_in_configs(name: str) -> dict[str, Any]:
    """The options with which a config of that attention starts."""
    return find_attention(name).config_defaults()


def parse_by_layer(text: str) -> dict[int, dict[str, Any]]:
    """Reads settings of single layers, as in "0=softmax 3.num_landmarks=128".

    Raises:
      ValueError: for a text that does not have this form, or has a key twice.
    """
    by_layer: dict[int, dict[str, Any]] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        layer, dot, option = key.partition(".")
        is_complete = value and (option or not dot)
        if not layer.isdecimal() or not is_complete:
            raise ValueError(
                "by_layer must be LAYER=NAME or LAYER.OPTION=VALUE, separated by "
                f"blanks, as in '0=softmax 3.num_landmarks=128', got {text!r}"
            )
        settings = by_layer.setdefault(int(layer), {})
        setting = option or "name"
        if setting in settings:
            raise ValueError(f"by_layer has {key} twice: {text!r}")
        settings[setting] = parse_value(value) if option else value
    return by_layer


def parse_value(text: str) -> Any:
    """Reads the value of an option from a command: JSON, or a word as it stands.

    So 64, 0.5, true and null are values, and exact is a word.
    """
    try:
        return json.loads(text)
    except ValueError:
        return text
