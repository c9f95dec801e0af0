"""The encoder, with a pluggable attention: pre-LN as on the LRA, post-LN as in BERT.

Randomness and masks are passed at call time and nothing is kept, so a module is a plain
tree of parameters: `dropout_rng=None` means no dropout.

Letters: B batch, L length, N heads, H head dim, D model dim, F FFN dim.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.base import check_choice, check_range
from nystromformer.ops import at_least_float32, dense, dropout, gelu, split_rng

REMAT = ("none", "attention", "block")
NORMS = ("pre", "post")
GELUS = ("erf", "tanh")

# As the kernels of PyTorch's Linear start, and so the published runs':
# U(−1/√fan_in, 1/√fan_in). Biases start at zero.
kernel_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
embedding_init = nnx.initializers.normal(0.02)


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
    """The config of an encoder; the defaults are the paper's on the LRA.

    vocab_size: ids of the inputs.
    max_length: the longest input.
    model_dim, num_heads: D, and N heads of H = D / N.
    attention, attention_options: of `make_attention`.
    dropout_rate: on the embeddings and on the output of each half of a block; with
      norm="pre" also after the GELU.
    norm: "pre": x + f(LN(x)), and a last LayerNorm; "post": LN(x + f(x)), as in BERT.
    gelu: "erf", the exact one, or "tanh", its approximation.
    num_token_types: 0 = no embedding of token types.
    separator: tokens behind the first of this id are of type 1; None = no token is.
    embedding_norm: LayerNorm on the sum of the embeddings.
    cls_token: a learned vector in front of every sequence.
    ignore_id: an id that is padding wherever it stands; None = as the mask says.
    remat: what is recomputed in the backward pass instead of stored.
    dtype: of the computation; parameters are float32.
    """

    vocab_size: int
    max_length: int
    num_layers: int = 2
    num_heads: int = 2
    model_dim: int = 64
    mlp_dim: int = 128
    attention: str = "nystrom"
    attention_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dropout_rate: float = 0.1
    norm: str = "pre"
    gelu: str = "erf"
    num_token_types: int = 0
    separator: int | None = None
    embedding_norm: bool = False
    cls_token: bool = False
    ignore_id: int | None = None
    remat: str = "none"
    dtype: jax.typing.DTypeLike = jnp.float32

    def __post_init__(self) -> None:
        for name, known in (("remat", REMAT), ("norm", NORMS), ("gelu", GELUS)):
            check_choice(name, getattr(self, name), known)
        for name in ("vocab_size", "max_length", "num_layers", "num_heads"):
            check_range(name, getattr(self, name), 1)
        if not 0 <= self.dropout_rate < 1:
            raise ValueError(f"dropout_rate must be in [0, 1), got {self.dropout_rate}")
        if self.model_dim % self.num_heads:
            sizes = f"model_dim {self.model_dim} is not num_heads {self.num_heads}"
            raise ValueError(f"{sizes} × a whole number")

    def norm_layer(self, rngs: nnx.Rngs) -> nnx.LayerNorm:
        """A LayerNorm of D numbers."""
        return nnx.LayerNorm(self.model_dim, epsilon=1e-5, dtype=self.dtype, rngs=rngs)


def rematerialised(module: nnx.Module) -> Callable[..., Any]:
    """The module's call, recomputed in the backward pass instead of stored."""
    graphdef, state = nnx.split(module)

    def call(state: nnx.State, *args: Any) -> Any:
        return nnx.merge(graphdef, state)(*args)

    return lambda *args: jax.checkpoint(call)(state, *args)


class SelfAttention(nnx.Module):
    """Projections around any attention of the table.

    The attention says how many projections it uses, so none goes unused.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        width = config.model_dim
        self.attention = make_attention(
            config.attention,
            num_heads=config.num_heads,
            head_dim=width // config.num_heads,
            max_length=config.max_length + config.cls_token,
            rngs=rngs,
            **config.attention_options,
        )
        self.num_heads = config.num_heads
        self.num_projections = self.attention.num_projections
        self.project = Dense(
            width, self.num_projections * width, dtype=config.dtype, rngs=rngs
        )
        self.out = Dense(width, width, dtype=config.dtype, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        batch, length, model_dim = x.shape
        head_dim = model_dim // self.num_heads
        projected = [
            part.reshape(batch, length, self.num_heads, head_dim)
            for part in jnp.split(self.project(x), self.num_projections, axis=-1)
        ]
        attended = self.attention(
            projected[0],
            projected[max(self.num_projections - 2, 0)],
            projected[-1],
            mask=None if mask is None else mask[:, None, None, :],
            dropout_rng=dropout_rng,
            broadcast_dropout=False,
            deterministic=dropout_rng is None,
        )
        return self.out(attended.reshape(batch, length, model_dim))


class Mlp(nnx.Module):
    """Linear, GELU, Linear."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        width, hidden, dtype = config.model_dim, config.mlp_dim, config.dtype
        self.expand = Dense(width, hidden, dtype=dtype, rngs=rngs)
        self.contract = Dense(hidden, width, dtype=dtype, rngs=rngs)
        self.approximate = config.gelu == "tanh"
        self.dropout_rate = config.dropout_rate if config.norm == "pre" else 0.0

    def __call__(self, x: jax.Array, dropout_rng: jax.Array | None = None) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        hidden = self.expand(x)
        hidden = jax.nn.gelu(hidden) if self.approximate else gelu(hidden)
        return self.contract(dropout(hidden, self.dropout_rate, dropout_rng))


class Block(nnx.Module):
    """Attention, then the MLP, each with a residual connection and a LayerNorm."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.attention_norm = config.norm_layer(rngs)
        self.attention = SelfAttention(config, rngs=rngs)
        self.mlp_norm = config.norm_layer(rngs)
        self.mlp = Mlp(config, rngs=rngs)
        self.dropout_rate = config.dropout_rate
        self.remat = config.remat
        self.pre_norm = config.norm == "pre"

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        rngs = split_rng(dropout_rng, 4)
        attention = self.attention
        if self.remat == "attention":
            attention = rematerialised(attention)
        x = self._add(
            x, self.attention_norm, lambda x: attention(x, mask, rngs[0]), rngs[1]
        )
        return self._add(x, self.mlp_norm, lambda x: self.mlp(x, rngs[2]), rngs[3])

    def _add(
        self,
        x: jax.Array,
        norm: Callable[[jax.Array], jax.Array],
        function: Callable[[jax.Array], jax.Array],
        dropout_rng: jax.Array | None,
    ) -> jax.Array:
        """x + f(LN(x)), or LN(x + f(x))."""
        out = function(norm(x) if self.pre_norm else x)
        x = x + dropout(out, self.dropout_rate, dropout_rng)
        return x if self.pre_norm else norm(x)


class Encoder(nnx.Module):
    """Tokens to vectors: embeddings and learned positions, then the blocks."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.max_length = config.max_length
        self.dropout_rate = config.dropout_rate
        self.ignore_id = config.ignore_id
        self.remat = config.remat
        self.dtype = config.dtype
        width = config.model_dim
        init, dtype = embedding_init, at_least_float32(config.dtype)
        self.embedding = nnx.Embed(
            config.vocab_size, width, dtype=dtype, embedding_init=init, rngs=rngs
        )

        def vectors(*shape: int) -> nnx.Param:
            return nnx.Param(init(rngs.params(), (*shape, width)))

        absent, types = nnx.data(None), config.num_token_types
        self.positions = vectors(config.max_length)
        self.cls = vectors() if config.cls_token else absent
        self.separator = -1 if config.separator is None else config.separator
        self.token_types = vectors(types) if types else absent
        norm = config.norm_layer(rngs) if config.embedding_norm else absent
        self.embedding_norm = norm
        self.blocks = nnx.List(
            Block(config, rngs=rngs) for _ in range(config.num_layers)
        )
        first, *others = (block.attention for block in self.blocks)
        if first.attention.shared_across_layers:  # one object: one set of parameters
            for other in others:
                other.attention = first.attention
        self.norm = config.norm_layer(rngs) if config.norm == "pre" else absent

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        token_types: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Encodes.

        Args:
          inputs: [B, L] token ids, L ≤ max_length.
          mask: [B, L] bool, True = a token, False = padding; None = all are tokens.
          dropout_rng: a key, or None for no dropout.
          token_types: [B, L] ids; None = as the separators say.

        Returns:
          [B, L, D] in dtype and its mask [B, L] or None (L + 1 with a CLS token).
        """
        length = inputs.shape[1]
        if self.ignore_id is not None:
            tokens = inputs != self.ignore_id
            mask = tokens if mask is None else mask & tokens
        if length > self.max_length:
            raise ValueError(f"length {length} is over max_length {self.max_length}")
        rngs = split_rng(dropout_rng, 1 + len(self.blocks))
        x = self._embed(inputs, token_types)
        if self.cls is not None:
            cls = jnp.broadcast_to(self.cls[...], (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([cls, x], axis=1)
            if mask is not None:
                mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x.astype(self.dtype), self.dropout_rate, rngs[0])
        for block, rng in zip(self.blocks, rngs[1:], strict=True):
            call = rematerialised(block) if self.remat == "block" else block
            x = call(x, mask, rng)
        return x if self.norm is None else self.norm(x), mask

    def _embed(self, inputs: jax.Array, token_types: jax.Array | None) -> jax.Array:
        """The sum of the embeddings of tokens, positions and types, [B, L, D]."""
        # Positions as an outer product: then their gradient, too, is a product.
        rows = self.positions[: inputs.shape[1]]
        ones = jnp.ones_like(rows, shape=len(inputs))
        positions = jnp.einsum("b,ld->bld", ones, rows, precision="highest")
        x = self.embedding(inputs) + positions
        if self.token_types is None:
            return x
        if token_types is None:
            ends = (inputs == self.separator).astype(jnp.int32)
            token_types = jnp.minimum(ends.cumsum(1) - ends, 1)
        return x + self.token_types[...][token_types]
