"""The settings of an encoder, checked, and the attention of each of its layers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nystromformer.attention import check_attention
from nystromformer.validation import (
    check_choice,
    check_kernel_size,
    check_range,
    check_rate,
)

# Layer, counted from 0 -> its settings: the name of its attention, or a mapping with
# "name" and options, of which only those that differ need be there.
ByLayer = Mapping[int, str | Mapping[str, Any]]


class LayerAttention(NamedTuple):
    """The attention of one layer: name and options, as for `make_attention`."""

    name: str
    options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """What a user chooses of an encoder, beside its inputs and its attention.

    The defaults are the paper's on the LRA.

    Letters: N heads, H = D / N head dim, D model dim.
    """

    num_layers: int = 2
    num_heads: int = 2  # N
    model_dim: int = 64  # D
    mlp_dim: int = 128

    # Dropout of the embeddings and of the output of each half of a block; with
    # norm="pre" also after the GELU.
    dropout_rate: float = 0.1

    # "pre": x + f(LN(x)), and a last LayerNorm; "post": LN(x + f(x)).
    norm: str = "pre"
    norm_epsilon: float = 1e-5  # epsilon of every LayerNorm
    gelu: str = "erf"  # the exact one; "tanh" is its approximation
    num_token_types: int = 0  # embeddings of token types
    embedding_norm: bool = False  # LayerNorm on the sum of the embeddings
    ignore_id: int | None = None  # an id that is padding wherever it stands

    # "learned": a vector for each position, added to the embeddings; "rotary": queries
    # and keys are rotated, see `layers.rotate_by_position`; "none".
    positions: str = "learned"

    # K odd, or 0 for none. In front of the projections x becomes x + conv(x), with a
    # kernel [K, D] that starts as U(−1/√K, 1/√K). [CLS] is a neighbour as any token.
    short_conv: int = 0
    remat: str = "none"  # "block": the backward pass recomputes each block
    dtype: jax.typing.DTypeLike = jnp.float32  # computation; parameters are float32

    def __post_init__(self) -> None:
        check_choice("remat", self.remat, ("none", "block"))
        check_choice("norm", self.norm, ("pre", "post"))
        check_choice("gelu", self.gelu, ("erf", "tanh"))
        check_choice("positions", self.positions, ("learned", "rotary", "none"))
        check_kernel_size("short_conv", self.short_conv)
        check_range("norm_epsilon", self.norm_epsilon, 0)
        for name in ("num_layers", "num_heads", "model_dim", "mlp_dim"):
            check_range(name, getattr(self, name), 1)
        check_rate("dropout_rate", self.dropout_rate)
        if self.model_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide model_dim {self.model_dim}"
            )
        head_dim = self.model_dim // self.num_heads
        if self.positions == "rotary" and head_dim % 2:
            raise ValueError(
                "positions='rotary' needs an even head size, got model_dim / num_heads"
                f" = {head_dim}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(EncoderSettings):
    """The config of an encoder, which may be a static argument of `jax.jit`.

    Beside the settings it has the encoder's inputs and its attention. The default is
    Nyström attention without the paper's convolution.

    Letters: F features of an input.
    """

    vocab_size: int | None  # token ids; None where inputs are feature vectors
    max_length: int  # longest input
    input_dim: int | None = None  # F, for inputs [B, L, F]: projected, not embedded
    separator: int | None = None  # tokens after the first of this id are of type 1
    cls_token: bool = False  # a learned vector in front of every sequence

    # Name and options of an attention, as for `make_attention`.
    attention: str = "nystrom"
    attention_options: Mapping[str, Any] = dataclasses.field(
        default_factory=dict, hash=False
    )

    # Settings of single layers that differ from the above, such as
    # {0: "softmax", 3: {"num_landmarks": 128}}. A layer that keeps the name keeps all
    # other options.
    attention_by_layer: ByLayer = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("max_length", self.max_length, 1)
        self._check_inputs()
        self.attentions()

    def attentions(self) -> list[LayerAttention]:
        """Lists the name and the options of the attention of each layer.

        Raises:
          ValueError: if `attention_by_layer` has a layer that does not exist, or an
            unknown attention or option.
        """
        return attentions_by_layer(
            num_layers=self.num_layers,
            name=self.attention,
            options=self.attention_options,
            by_layer=self.attention_by_layer,
        )

    def _check_inputs(self) -> None:
        if (self.vocab_size is None) == (self.input_dim is None):
            raise ValueError("give vocab_size, for tokens, or input_dim, for features")
        if self.input_dim is not None and self.ignore_id is not None:
            raise ValueError(
                f"ignore_id={self.ignore_id} is a token's, and inputs are features: "
                "give a mask with them"
            )
        if self.input_dim is not None and self.separator is not None:
            raise ValueError(
                f"separator={self.separator} is a token's, and inputs are features: "
                "pass token_types with them"
            )


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
