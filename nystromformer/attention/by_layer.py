"""An attention for each layer: one for all, and what single layers have instead.

    {0: "softmax", 3: {"num_landmarks": 128}}

in Python, and "0=softmax 3.num_landmarks=128" as a text, in a config.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nystromformer.attention import check_attention
from nystromformer.attention.options import parse_value

# Layer, counted from 0 -> the name of its attention; or "name" and options, of which
# only those that differ need be there.
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
      num_layers: of the encoder.
      name, options: of the layers that `by_layer` does not name.
      by_layer: what single layers have instead. A layer of the same name keeps the
        options that it does not change. A layer of another name has the options that
        its entry names, and defaults for the rest.

    Raises:
      ValueError: for a layer that does not exist, an unknown attention or option, or a
        wrong type.
    """
    check_attention(name, options)
    attentions = [LayerAttention(name, options)] * num_layers
    for layer, changes in by_layer.items():
        if layer not in range(num_layers):
            raise ValueError(
                f"there is no layer {layer!r} to have an attention of its own: the "
                f"{num_layers} layers are 0 to {num_layers - 1}"
            )
        layer_options = _as_mapping(changes)
        layer_name = layer_options.pop("name", name)
        if layer_name == name:
            layer_options = {**options, **layer_options}
        try:
            check_attention(layer_name, layer_options)
        except ValueError as error:
            raise ValueError(f"layer {layer}: {error}") from error
        attentions[layer] = LayerAttention(layer_name, layer_options)
    return attentions


def parse_by_layer(text: str) -> dict[int, dict[str, Any]]:
    """Reads what single layers have instead, as in "0=softmax 3.num_landmarks=128".

    Raises:
      ValueError: for a text of another form, or one that has a key twice.
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
        changes = by_layer.setdefault(int(layer), {})
        changed_key = option or "name"
        if changed_key in changes:
            raise ValueError(f"by_layer has {key} twice: {text!r}")
        changes[changed_key] = parse_value(value) if option else value
    return by_layer


def add_options(
    name: str, by_layer: ByLayer, options_of: Callable[[str], Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Adds options to the layers of another attention, where they name none.

    Args:
      name: of the attention of all other layers.
      by_layer: what single layers have instead.
      options_of: the options with which an attention starts.
    """
    complete = {}
    for layer, changes in by_layer.items():
        options = _as_mapping(changes)
        layer_name = options.get("name", name)
        if layer_name != name:
            options = {**options_of(layer_name), **options}
        complete[layer] = options
    return complete


def _as_mapping(changes: str | Mapping[str, Any]) -> dict[str, Any]:
    """What a layer has instead, as a mapping of "name" and options."""
    return {"name": changes} if isinstance(changes, str) else dict(changes)
