"""The settings of an encoder, checked."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nystromformer.by_layer import ByLayer, LayerAttention, attentions_by_layer
from nystromformer.validation import (
    check_choice,
    check_kernel_size,
    check_range,
    check_rate,
    check_type,
)


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
        check_type("short_conv", self.short_conv, int)
        check_kernel_size("short_conv", self.short_conv)
        check_range("norm_epsilon", self.norm_epsilon, 0)
        for name in ("num_layers", "num_heads", "model_dim", "mlp_dim"):
            check_type(name, getattr(self, name), int)
            check_range(name, getattr(self, name), 1)
        check_type("num_token_types", self.num_token_types, int)
        check_range("num_token_types", self.num_token_types, 0)
        check_type("ignore_id", self.ignore_id, int | None)
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
        check_type("max_length", self.max_length, int)
        check_range("max_length", self.max_length, 1)
        if not jnp.issubdtype(self.dtype, jnp.floating):
            raise ValueError(
                f"dtype must be of floats, such as float32, got {jnp.dtype(self.dtype)}"
            )
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
        for name in ("vocab_size", "input_dim"):
            size = getattr(self, name)
            if size is not None:
                check_type(name, size, int)
                check_range(name, size, 1)
        check_type("separator", self.separator, int | None)
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
