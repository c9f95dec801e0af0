"""The pre-LN encoder of the paper, with a pluggable attention.

Randomness and masks are passed at call time and nothing is kept, so a module is a plain
tree of parameters: `dropout_rng=None` means no dropout.

Letters: B batch, L length, N heads, H head dim, D model dim, F FFN dim.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.attention.base import Attention
from nystromformer.dense import dense_dot_general
from nystromformer.dropout import dropout
from nystromformer.gelu import gelu

REMAT = ("none", "attention", "block")

# As the kernels of PyTorch's Linear start, and so the published runs':
# U(−1/√fan_in, 1/√fan_in). Biases start at zero.
kernel_init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
embedding_init = nnx.initializers.normal(0.02)
dense = functools.partial(
    nnx.Linear, kernel_init=kernel_init, dot_general=dense_dot_general
)


def split_rng(rng: jax.Array | None, num: int) -> list[jax.Array | None]:
    """`num` keys, or as many None."""
    return [None] * num if rng is None else list(jax.random.split(rng, num))


def rematerialised(module: nnx.Module) -> Callable[..., Any]:
    """The module's call, recomputed in the backward pass instead of stored."""
    graphdef, state = nnx.split(module)

    def call(state: nnx.State, *args: Any) -> Any:
        return nnx.merge(graphdef, state)(*args)

    return lambda *args: jax.checkpoint(call)(state, *args)


class SelfAttention(nnx.Module):
    """Projections around any attention of the table.

    The attention says how many projections it uses, so none goes unused. Where the
    layers share one attention, it is not kept here but comes with every call.
    """

    def __init__(
        self,
        *,
        model_dim: int,
        num_heads: int,
        max_length: int,
        attention: str,
        attention_options: Mapping[str, Any],
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ):
        if model_dim % num_heads:
            raise ValueError(
                f"model_dim {model_dim} is not num_heads {num_heads} × a whole head dim"
            )
        self.attention = make_attention(
            attention,
            num_heads=num_heads,
            head_dim=model_dim // num_heads,
            max_length=max_length,
            rngs=rngs,
            **attention_options,
        )
        self.num_heads = num_heads
        self.num_projections = self.attention.num_projections
        self.project = dense(
            model_dim, self.num_projections * model_dim, dtype=dtype, rngs=rngs
        )
        self.out = dense(model_dim, model_dim, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        shared: Attention | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        batch, length, model_dim = x.shape
        head_dim = model_dim // self.num_heads
        projected = [
            part.reshape(batch, length, self.num_heads, head_dim)
            for part in jnp.split(self.project(x), self.num_projections, axis=-1)
        ]
        attention = self.attention if shared is None else shared
        attended = attention(
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
    """Linear, GELU, Linear, with dropout after the GELU."""

    def __init__(
        self,
        *,
        model_dim: int,
        mlp_dim: int,
        dropout_rate: float,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.expand = dense(model_dim, mlp_dim, dtype=dtype, rngs=rngs)
        self.contract = dense(mlp_dim, model_dim, dtype=dtype, rngs=rngs)
        self.dropout_rate = dropout_rate

    def __call__(self, x: jax.Array, dropout_rng: jax.Array | None = None) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        hidden = gelu(self.expand(x))
        return self.contract(dropout(hidden, self.dropout_rate, dropout_rng))


class Block(nnx.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x))."""

    def __init__(
        self,
        *,
        model_dim: int,
        num_heads: int,
        mlp_dim: int,
        max_length: int,
        attention: str,
        attention_options: Mapping[str, Any],
        dropout_rate: float,
        remat: str,
        dtype: jax.typing.DTypeLike,
        rngs: nnx.Rngs,
    ):
        self.attention_norm = nnx.LayerNorm(
            model_dim, epsilon=1e-5, dtype=dtype, rngs=rngs
        )
        self.attention = SelfAttention(
            model_dim=model_dim,
            num_heads=num_heads,
            max_length=max_length,
            attention=attention,
            attention_options=attention_options,
            dtype=dtype,
            rngs=rngs,
        )
        self.mlp_norm = nnx.LayerNorm(model_dim, epsilon=1e-5, dtype=dtype, rngs=rngs)
        self.mlp = Mlp(
            model_dim=model_dim,
            mlp_dim=mlp_dim,
            dropout_rate=dropout_rate,
            dtype=dtype,
            rngs=rngs,
        )
        self.dropout_rate = dropout_rate
        self.remat = remat

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        shared: Attention | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        rngs = split_rng(dropout_rng, 4)
        attention = self.attention
        if self.remat == "attention":
            attention = rematerialised(attention)
        attended = attention(self.attention_norm(x), mask, rngs[0], shared)
        x = x + dropout(attended, self.dropout_rate, rngs[1])
        expanded = self.mlp(self.mlp_norm(x), rngs[2])
        return x + dropout(expanded, self.dropout_rate, rngs[3])


class Encoder(nnx.Module):
    """Tokens to vectors: embedding + learned positions, blocks, a last LayerNorm.

    With `cls_token` a learned vector is put in front of every sequence, so outputs and
    mask are one longer than the inputs.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        max_length: int,
        num_layers: int = 2,
        num_heads: int = 2,
        model_dim: int = 64,
        mlp_dim: int = 128,
        attention: str = "nystrom",
        attention_options: Mapping[str, Any] | None = None,
        dropout_rate: float = 0.1,
        remat: str = "none",
        cls_token: bool = False,
        dtype: jax.typing.DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if remat not in REMAT:
            raise ValueError(f"remat must be one of {REMAT}, got {remat!r}")
        self.max_length = max_length
        self.dropout_rate = dropout_rate
        self.remat = remat
        self.dtype = dtype
        self.embedding = nnx.Embed(
            vocab_size, model_dim, embedding_init=embedding_init, rngs=rngs
        )
        positions = embedding_init(rngs.params(), (max_length, model_dim))
        self.positions = nnx.Param(positions)
        self.cls = nnx.data(None)
        if cls_token:
            self.cls = nnx.Param(embedding_init(rngs.params(), (model_dim,)))
        self.blocks = nnx.List(
            Block(
                model_dim=model_dim,
                num_heads=num_heads,
                mlp_dim=mlp_dim,
                max_length=max_length + cls_token,
                attention=attention,
                attention_options=attention_options or {},
                dropout_rate=dropout_rate,
                remat=remat,
                dtype=dtype,
                rngs=rngs,
            )
            for _ in range(num_layers)
        )
        self.shared = nnx.data(None)  # one attention for all layers, taken from them
        if self.blocks and self.blocks[0].attention.attention.shared_across_layers:
            self.shared = self.blocks[0].attention.attention
            for block in self.blocks:
                del block.attention.attention
        self.norm = nnx.LayerNorm(model_dim, epsilon=1e-5, dtype=dtype, rngs=rngs)

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Encodes.

        Args:
          inputs: [B, L] token ids, L ≤ max_length.
          mask: [B, L] bool, True = a token, False = padding; None = all are tokens.
          dropout_rng: a key, or None for no dropout.

        Returns:
          [B, L, D] in dtype and its mask [B, L] (L + 1 with a CLS token).
        """
        batch, length = inputs.shape
        if length > self.max_length:
            raise ValueError(f"length {length} is over max_length {self.max_length}")
        if mask is None:
            mask = jnp.ones(inputs.shape, bool)
        rngs = split_rng(dropout_rng, 1 + len(self.blocks))
        # An outer product, so that the gradient is a product too: XLA's sum over the
        # batch takes far longer on a CPU.
        ones = jnp.ones(batch, self.positions.dtype)
        positions = jnp.einsum(
            "b,ld->bld", ones, self.positions[:length], precision="highest"
        )
        x = self.embedding(inputs) + positions
        if self.cls is not None:
            cls = jnp.broadcast_to(self.cls[...], (batch, 1, x.shape[-1]))
            x = jnp.concatenate([cls, x], axis=1)
            mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        x = dropout(x.astype(self.dtype), self.dropout_rate, rngs[0])
        for block, rng in zip(self.blocks, rngs[1:], strict=True):
            call = rematerialised(block) if self.remat == "block" else block
            x = call(x, mask, rng, self.shared)
        return self.norm(x), mask
