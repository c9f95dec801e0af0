"""The groups of a config that have a name, and the options that belong to it."""

import dataclasses
from typing import Any

from nystromformer.attention import ATTENTIONS, check_attention
from nystromformer.attention.by_layer import add_default_options, parse_by_layer


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
    check_attention(name, {})
    return ATTENTIONS[name].config_defaults()
