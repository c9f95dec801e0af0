"""The encoder with a pluggable attention: pre-LN as on the LRA, post-LN as in BERT.

Masks and random keys are passed at call time and no module keeps state, so a model is a
plain tree of parameters. Dropout is on where a `dropout_rng` is given, and only there:
flax's `model.train()` has no key to give, so that after it a call without one is an
error. Gradients are in reverse mode: `jax.jvp`, `jax.jacfwd` and `jax.hessian` raise
TypeError. The Hessian times a vector is `jax.grad` of the gradient's product with it.

Letters: B batch, L length, N heads, H head dim, D model dim, F features of an input.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import make_attention
from nystromformer.encoder_config import EncoderConfig, kernel_init
from nystromformer.ops import at_least_float32, dropout, gelu, split_rng, zeroed
from nystromformer.rotary import rotate_by_position
from nystromformer.short_conv import short_conv

embedding_init = nnx.initializers.normal(0.02)


class SelfAttention(nnx.Module):
    """An attention of the table, and as many projections as it uses.

    A short convolution may come before the projections, and a rotation of queries and
    keys after them. With rotary positions an attention that has no queries and keys
    knows no positions.
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
        self.project = config.dense(width, self.num_projections * width, rngs)
        self.out = config.dense(width, width, rngs)
        self.rotary = config.positions == "rotary"
        self.short_conv: Any = nnx.data(None)
        if config.short_conv:
            kernel = kernel_init(rngs.params(), (config.short_conv, width))
            self.short_conv = nnx.Param(kernel)

    def __call__(self, x: jax.Array, mask=None, dropout_rng=None) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        if self.short_conv is not None:
            x = zeroed(x, mask)  # padding must not reach its neighbours
            x = x + short_conv(x, self.short_conv[...])
        parts = jnp.split(self.project(x), self.num_projections, axis=-1)
        head_dim = x.shape[2] // self.num_heads
        projected = [y.reshape(*x.shape[:2], self.num_heads, head_dim) for y in parts]
        if self.rotary:
            *queries_and_keys, value = projected
            projected = [*map(rotate_by_position, queries_and_keys), value]
        attended = self.attention(
            projected[0],
            projected[max(self.num_projections - 2, 0)],
            projected[-1],
            mask=None if mask is None else mask[:, None, None, :],
            dropout_rng=dropout_rng,
            broadcast_dropout=False,
            deterministic=dropout_rng is None,
        )
        return self.out(attended.reshape(x.shape))


class Mlp(nnx.Module):
    """Linear, GELU, Linear."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.expand = config.dense(config.model_dim, config.mlp_dim, rngs)
        self.contract = config.dense(config.mlp_dim, config.model_dim, rngs)
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
        self.deterministic = True  # flax's train() and eval() set it
        self.pre_norm = config.norm == "pre"

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        drops_weights = getattr(self.attention.attention, "dropout_rate", 0) > 0
        has_dropout = self.dropout_rate > 0 or drops_weights
        if has_dropout and dropout_rng is None and not self.deterministic:
            raise ValueError(
                "model.train() asks for dropout, which needs a key here: pass "
                "dropout_rng=…, or call model.eval()"
            )
        rngs = split_rng(dropout_rng, 4)
        attend = functools.partial(self.attention, mask=mask, dropout_rng=rngs[0])
        x = self._add(x, self.attention_norm, attend, rngs[1])
        mlp = functools.partial(self.mlp, dropout_rng=rngs[2])
        return self._add(x, self.mlp_norm, mlp, rngs[3])

    def _add(self, x, norm, layer, dropout_rng) -> jax.Array:
        """x + f(LN(x)), or LN(x + f(x))."""
        out = layer(norm(x) if self.pre_norm else x)
        x = x + dropout(out, self.dropout_rate, dropout_rng)
        return x if self.pre_norm else norm(x)


def recomputed(block: Block, *inputs: Any) -> jax.Array:
    """block(*inputs); the backward pass computes it again and stores the inputs alone.

    Unlike `nnx.remat` it writes no variables back, which inside a loop of jax, where
    they come from outside, is an error.
    """
    graphdef, state = nnx.split(block)

    @jax.checkpoint
    def run(state: nnx.State, *inputs: Any) -> jax.Array:
        return nnx.merge(graphdef, state)(*inputs)

    return run(state, *inputs)


class Encoder(nnx.Module):
    """Embeddings of tokens or features, and of positions, then the blocks."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.max_length = config.max_length
        self.dropout_rate = config.dropout_rate
        self.ignore_id = config.ignore_id
        self.remat = config.remat
        self.dtype = config.dtype
        self.separator = -1 if config.separator is None else config.separator
        width, absent = config.model_dim, nnx.data(None)

        def vectors(*shape: int) -> nnx.Param:
            return nnx.Param(embedding_init(rngs.params(), (*shape, width)))

        if config.input_dim:
            embedding: Any = config.dense(config.input_dim, width, rngs)
        else:
            sizes: Any = config.vocab_size, width
            options = {"dtype": at_least_float32(config.dtype), "rngs": rngs}
            embedding = nnx.Embed(*sizes, embedding_init=embedding_init, **options)
        self.embedding = embedding
        is_learned = config.positions == "learned"
        self.positions = vectors(config.max_length) if is_learned else absent
        self.cls = vectors() if config.cls_token else absent
        types = config.num_token_types
        self.token_types = vectors(types) if types else absent
        norm = config.norm_layer(rngs) if config.embedding_norm else absent
        self.embedding_norm = norm
        blocks = (Block(config, rngs=rngs) for _ in range(config.num_layers))
        self.blocks = nnx.List(blocks)
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
        """Token ids [B, L], or features [B, L, F], to vectors [B, L, D] and their mask.

        Args:
          inputs: 1 ≤ L ≤ max_length, else ValueError.
          mask: [B, L] bool, True = a token, False = padding; None = all are tokens.
          dropout_rng: a key, or None for no dropout.
          token_types: [B, L] ids; None = as the separators say.

        Returns:
          [B, L, D] in dtype and its mask [B, L] or None (L + 1 with a CLS token).
        """
        if inputs.ndim != 2 + isinstance(self.embedding, nnx.Linear):
            raise ValueError(f"inputs must be [B, L] or [B, L, F], got {inputs.shape}")
        length = inputs.shape[1]
        if length == 0:
            raise ValueError(f"inputs must have at least one token, got {inputs.shape}")
        if length > self.max_length:
            raise ValueError(f"length {length} is over max_length {self.max_length}")
        if mask is not None and mask.shape != inputs.shape[:2]:
            raise ValueError(
                f"mask must be [B, L], here {inputs.shape[:2]}, got {mask.shape}"
            )
        if self.ignore_id is not None:
            tokens = inputs != self.ignore_id
            mask = tokens if mask is None else mask & tokens
        if isinstance(self.embedding, nnx.Linear):
            inputs = zeroed(inputs, mask)  # a NaN there would reach the gradient
        rngs = split_rng(dropout_rng, 1 + len(self.blocks))
        x = self._embed(inputs, token_types)
        if self.cls is not None:
            cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, x.shape[-1]))
            x = jnp.concatenate([cls, x], axis=1)
            if mask is not None:
                mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x.astype(self.dtype), self.dropout_rate, rngs[0])
        call = recomputed if self.remat == "block" else Block.__call__
        for block, rng in zip(self.blocks, rngs[1:], strict=True):
            x = call(block, x, mask, rng)
        return x if self.norm is None else self.norm(x), mask

    def _embed(self, inputs: jax.Array, token_types: jax.Array | None) -> jax.Array:
        """The sum of the embeddings of inputs, positions and types, [B, L, D]."""
        x = self.embedding(inputs)
        if self.positions is not None:
            # As an outer product: then the gradient of positions is a product, too.
            rows = self.positions[: inputs.shape[1]]
            ones = jnp.ones_like(rows, shape=inputs.shape[:1])
            x = x + jnp.einsum("b,ld->bld", ones, rows, precision="highest")
        if self.token_types is None:
            return x
        if token_types is None:
            ends = (inputs == self.separator).astype(jnp.int32)
            token_types = jnp.minimum(ends.cumsum(1) - ends, 1)
        return x + self.token_types[...][token_types]
