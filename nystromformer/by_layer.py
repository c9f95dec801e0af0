"""Settings of the attention of single layers, and the attentions of all layers.

They are a mapping, as in `EncoderConfig.attention_by_layer`, or a text, as in
`--config.attention.by_layer`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nystromformer.attention import check_attention

# Layer, counted from 0 -> its settings: the name of its attention, or a mapping with
# "name" and options, of which only those that differ need be there.
ByLayer = Mapping[int, str | Mapping[str, Any]]


class LayerAttention(NamedTuple):
    """The attention of one layer: name and options, as for `make_attention`."""

    name: str
    options: Mapping[str, Any]


def attentions_by_layer(
    num_layers: int, name: str, options: Mapping[str, Any], by_layer: ByLayer
) -> list[LayerAttention]:
    """Lists the attentions of all layers.

    Args:
      num_layers: the number of layers of the encoder.
      name, options: the attention of the layers that `by_layer` does not have.
      by_layer: settings of single layers. A layer that keeps the name keeps all other
        options. A layer with a different name has the options in its settings, and
        defaults for the rest.

    Raises:
      ValueError: for a layer that does not exist, an unknown attention or option, or a
        wrong type.
    """
    check_attention(name, options)
    attentions = [LayerAttention(name, options)] * num_layers
    for layer, settings in by_layer.items():
        if layer not in range(num_layers):
            raise ValueError(
                f"there is no layer {layer!r} to have an attention of its own: the "
                f"{num_layers} layers are 0 to {num_layers - 1}"
            )
        layer_options = _as_mapping(settings)
        layer_name = layer_options.pop("name", name)
        if layer_name == name:
            layer_options = {**options, **layer_options}
        try:
            check_attention(layer_name, layer_options)
        except ValueError as error:
            raise ValueError(f"layer {layer}: {error}") from error
        attentions[layer] = LayerAttention(layer_name, layer_options)
    return attentions


def add_default_options(
    name: str, by_layer: ByLayer, default_options: Callable[[str], Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Adds default options to the layers with a different attention.

    Args:
      name: the name of the attention of all other layers.
      by_layer: settings of single layers. Options that they have keep their values.
      default_options: returns the options with which an attention of a name starts.
    """
    complete = {}
    for layer, layer_settings in by_layer.items():
        settings = _as_mapping(layer_settings)
        layer_name = settings.get("name", name)
        if layer_name != name:
            settings = {**default_options(layer_name), **settings}
        complete[layer] = settings
    return complete


def _as_mapping(settings: str | Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a layer as a mapping with "name" and options."""
    return {"name": settings} if isinstance(settings, str) else dict(settings)


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
