"""The settings of an encoder, checked, and the layers that they make."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import check_attention
from nystromformer.ops import dense
from nystromformer.validation import check_choice, check_range

# U(−1/√fan_in, 1/√fan_in), as PyTorch's Linear and so the published runs start.
# Biases start at zero.
kernel_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")


class Dense(nnx.Linear):
    """Linear, computed by `ops.dense`."""

    def __init__(self, *sizes: int, **options: Any):
        super().__init__(*sizes, kernel_init=kernel_init, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., L, D] -> [..., L, E]."""
        assert self.bias is not None
        return dense(x.astype(self.dtype), self.kernel[...], self.bias[...])


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The config of an encoder; defaults: the paper's on the LRA, no convolution."""

    vocab_size: int | None  # token ids; None where inputs are feature vectors
    max_length: int  # of an input
    num_layers: int = 2
    num_heads: int = 2  # N of H = D / N
    model_dim: int = 64  # D
    mlp_dim: int = 128
    attention: str = "nystrom"  # this and the next as for `make_attention`
    attention_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Of the embeddings and the output of each half of a block; with norm="pre" also
    # after the GELU.
    dropout_rate: float = 0.1
    norm: str = "pre"  # x + f(LN(x)), and a last LayerNorm; "post": LN(x + f(x))
    gelu: str = "erf"  # the exact one; "tanh" is its approximation
    num_token_types: int = 0  # embeddings of token types
    separator: int | None = None  # tokens after the first of this id are of type 1
    embedding_norm: bool = False  # LayerNorm on the sum of the embeddings
    cls_token: bool = False  # a learned vector in front of every sequence
    ignore_id: int | None = None  # an id that is padding wherever it stands
    input_dim: int | None = None  # F, for inputs [B, L, F]: projected, not embedded
    # "learned": a vector for each, added to the embeddings; "rotary": queries and keys
    # are rotated, see `nystromformer.rotary`; "none".
    positions: str = "learned"
    # K odd, or 0 for none. In front of the projections x becomes x + conv(x), with a
    # kernel [K, D] that starts as U(−1/√K, 1/√K). [CLS] is a neighbour as any token.
    short_conv: int = 0
    remat: str = "none"  # "block" recomputes each in the backward pass
    dtype: jax.typing.DTypeLike = jnp.float32  # computation; parameters are float32

    def __post_init__(self) -> None:
        check_choice("remat", self.remat, ("none", "block"))
        check_choice("norm", self.norm, ("pre", "post"))
        check_choice("gelu", self.gelu, ("erf", "tanh"))
        check_choice("positions", self.positions, ("learned", "rotary", "none"))
        check_range("short_conv", self.short_conv, 0)
        check_attention(self.attention, self.attention_options)
        if (self.vocab_size is None) == (self.input_dim is None):
            raise ValueError("give vocab_size, for tokens, or input_dim, for features")
        if self.input_dim is not None and self.ignore_id is not None:
            raise ValueError(
                f"ignore_id={self.ignore_id} is a token's, and inputs are features: "
                "give a mask with them"
            )
        for name in ("max_length", "num_layers", "num_heads", "model_dim", "mlp_dim"):
            check_range(name, getattr(self, name), 1)
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}")
        if self.model_dim % self.num_heads:
            sizes = f"{self.num_heads} does not divide model_dim {self.model_dim}"
            raise ValueError(f"num_heads {sizes}")
        if self.short_conv and self.short_conv % 2 == 0:
            raise ValueError(
                f"short_conv must be odd, or 0 for none, got {self.short_conv}"
            )
        if self.positions == "rotary" and self.model_dim // self.num_heads % 2:
            raise ValueError(
                "positions='rotary' needs an even head size, got model_dim / num_heads"
                f" = {self.model_dim // self.num_heads}"
            )

    def dense(self, num_in: int, num_out: int, rngs: nnx.Rngs) -> Dense:
        return Dense(num_in, num_out, dtype=self.dtype, rngs=rngs)

    def norm_layer(self, rngs: nnx.Rngs) -> nnx.LayerNorm:
        return nnx.LayerNorm(self.model_dim, epsilon=1e-5, dtype=self.dtype, rngs=rngs)
