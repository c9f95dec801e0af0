"""The encoder with a pluggable attention: pre-LN as on the LRA, post-LN as in BERT.

Masks and random keys are passed at call time. A model is a plain tree of arrays: its
parameters, and what attentions have drawn with them (Performer's projection, the keys
of BigBird's blocks and of Reformer's hashes). Dropout is on where a
`dropout_rng` is given, and only there: flax's `model.train()` has no key to give, so
that after it a call without one is an error. Gradients are in reverse mode: `jax.jvp`,
`jax.jacfwd` and `jax.hessian` raise TypeError. The Hessian times a vector is `jax.grad`
of the gradient's product with it.

Letters: B batch, L length, N heads, H head dim, D model dim, E output dim, F features
of an input.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import find_attention, make_attention
from nystromformer.dropout import dropout, split_rng
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import (
    Embedding,
    LayerNorm,
    embedding_init,
    gelu,
    jax_gelu,
    kernel_init,
    make_dense,
    make_norm,
    rotate_by_position,
    short_conv,
)
from nystromformer.masks import ranks, zero_masked
from nystromformer.precision import at_least_float32
from nystromformer.rows import take_rows


class SelfAttention(nnx.Module):
    """An attention of the table, and as many projections as it uses.

    A short convolution may come before the projections, and a rotation of queries and
    keys after them. With rotary positions an attention that has no queries and keys
    knows no positions.
    """

    def __init__(self, config: EncoderConfig, layer: int = 0, *, rngs: nnx.Rngs):
        model_dim = config.model_dim
        name, options = config.attentions()[layer]
        self.attention = make_attention(
            name,
            num_heads=config.num_heads,
            head_dim=model_dim // config.num_heads,
            max_length=config.max_length + config.cls_token,
            rngs=rngs,
            **options,
        )
        self.num_heads = config.num_heads
        self.num_projections = self.attention.num_projections
        self.project = make_dense(
            config, model_dim, self.num_projections * model_dim, rngs
        )
        self.out = make_dense(config, model_dim, model_dim, rngs)
        self.rotary = config.positions == "rotary"
        self.short_conv: Any = nnx.data(None)
        if config.short_conv:
            shape = (config.short_conv, model_dim)
            kernel = kernel_init(rngs.params(), shape, jnp.float32)
            self.short_conv = nnx.Param(kernel)

    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
    ) -> jax.Array:
        """x [B, L, D], mask [B, L] bool -> [B, L, D]."""
        if self.short_conv is not None:
            x = zero_masked(x, mask)  # Padding must not reach its neighbours.
            x = x + short_conv(x, self.short_conv[...])
        query, key, value = self._project(x)
        attended = self.attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None, None, :],
            dropout_rng=dropout_rng,
            broadcast_dropout=False,
            deterministic=dropout_rng is None,
        )
        return self.out(attended.reshape(x.shape))

    def _project(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values [B, L, N, H]; with fewer projections they share."""
        batch_size, length, model_dim = x.shape
        shape = (batch_size, length, self.num_heads, model_dim // self.num_heads)
        projections = jnp.split(self.project(x), self.num_projections, axis=-1)
        # The last projection makes the values, those before it queries and keys.
        *others, value = [projection.reshape(shape) for projection in projections]
        if self.rotary:
            others = [rotate_by_position(projected) for projected in others]
        if not others:
            return value, value, value
        query = others[0]
        key = others[-1]  # With two projections it is the query.
        return query, key, value


class Mlp(nnx.Module):
    """Linear, GELU, Linear."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.expand = make_dense(config, config.model_dim, config.mlp_dim, rngs)
        self.contract = make_dense(config, config.mlp_dim, config.model_dim, rngs)
        self.approximate = config.gelu == "tanh"
        self.dropout_rate = config.dropout_rate if config.norm == "pre" else 0.0

    def __call__(self, x: jax.Array, dropout_rng: jax.Array | None = None) -> jax.Array:
        """[B, L, D] -> [B, L, D]."""
        hidden = self.expand(x)
        if self.approximate:
            hidden = jax_gelu(hidden, approximate=True)
        else:
            hidden = gelu(hidden)
        return self.contract(dropout(hidden, self.dropout_rate, dropout_rng))


class Block(nnx.Module):
    """Attention, then the MLP, each with a residual connection and a LayerNorm.

    Args:
      config: the config of the encoder.
      layer: the number of the layer, counted from 0, whose attention it has.
      rngs: the keys for the initial values of parameters.
    """

    def __init__(self, config: EncoderConfig, layer: int = 0, *, rngs: nnx.Rngs):
        self.attention_norm = make_norm(config, rngs)
        self.attention = SelfAttention(config, layer, rngs=rngs)
        self.mlp_norm = make_norm(config, rngs)
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
        """x [B, L, D], mask [B, L] bool -> [B, L, D].

        Raises:
          ValueError: after model.train() without a dropout_rng, if something is
            drawn.
        """
        if dropout_rng is None and not self.deterministic:
            attention = self.attention.attention
            if self.dropout_rate > 0 or attention.draws_in_training:
                raise ValueError(
                    "model.train() asks for dropout, or for features or hashes that "
                    "are redrawn, which needs a key here: pass dropout_rng=…, or call "
                    "model.eval()"
                )
        rngs = split_rng(dropout_rng, 4)
        attend = functools.partial(self.attention, mask=mask, dropout_rng=rngs[0])
        x = self._add(x, self.attention_norm, attend, rngs[1])
        mlp = functools.partial(self.mlp, dropout_rng=rngs[2])
        return self._add(x, self.mlp_norm, mlp, rngs[3])

    def _add(
        self,
        x: jax.Array,
        norm: LayerNorm,
        layer: Callable[[jax.Array], jax.Array],
        dropout_rng: jax.Array | None,
    ) -> jax.Array:
        """x + f(LN(x)), or LN(x + f(x))."""
        out = layer(norm(x) if self.pre_norm else x)
        x = x + dropout(out, self.dropout_rate, dropout_rng)
        return x if self.pre_norm else norm(x)


def call_with_remat(block: Block, *inputs: Any) -> jax.Array:
    """block(*inputs), of which only the inputs are stored for the backward pass.

    The backward pass computes the block again. Unlike `nnx.remat` it writes no
    variables back: inside a loop of jax, where the variables come from outside, that
    would be an error.
    """
    graphdef, state = nnx.split(block)
    return _merge_and_call(graphdef, state, *inputs)


@functools.partial(jax.checkpoint, static_argnums=0)
def _merge_and_call(
    graphdef: nnx.GraphDef[Block], state: nnx.State, *inputs: Any
) -> jax.Array:
    return nnx.merge(graphdef, state)(*inputs)


def _make_embedding_table(*shape: int, rngs: nnx.Rngs) -> nnx.Param:
    return nnx.Param(embedding_init(rngs.params(), shape, jnp.float32))


def _share_attentions(blocks: Sequence[Block], config: EncoderConfig) -> None:
    """Gives layers with equal options the attention of the first of them.

    It does so only for attentions that are `shared_across_layers`.
    """
    settings = [
        (name, find_attention(name).complete_options(options))
        for name, options in config.attentions()
    ]
    for layer, block in enumerate(blocks):
        if block.attention.attention.shared_across_layers:
            first_layer = settings.index(settings[layer])
            block.attention.attention = blocks[first_layer].attention.attention


class Encoder(nnx.Module):
    """Embeddings of tokens or features, and of positions, then the blocks."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.max_length = config.max_length
        self.dropout_rate = config.dropout_rate
        self.ignore_id = config.ignore_id
        self.remat = config.remat
        self.dtype = config.dtype
        self.separator = config.separator
        self.input_dim = config.input_dim
        model_dim = config.model_dim

        self.embedding: Any
        if config.input_dim is not None:
            self.embedding = make_dense(config, config.input_dim, model_dim, rngs)
        else:
            assert config.vocab_size is not None
            self.embedding = Embedding(
                config.vocab_size,
                model_dim,
                embedding_init=embedding_init,
                dtype=at_least_float32(config.dtype),
                rngs=rngs,
            )

        # Parts that this encoder does not have are None among its data.
        self.positions: Any = nnx.data(None)
        if config.positions == "learned":
            self.positions = _make_embedding_table(
                config.max_length, model_dim, rngs=rngs
            )
        self.cls: Any = nnx.data(None)
        if config.cls_token:
            self.cls = _make_embedding_table(model_dim, rngs=rngs)
        self.token_types: Any = nnx.data(None)
        if config.num_token_types:
            self.token_types = _make_embedding_table(
                config.num_token_types, model_dim, rngs=rngs
            )
        self.embedding_norm: Any = nnx.data(None)
        if config.embedding_norm:
            self.embedding_norm = make_norm(config, rngs)

        self.blocks = nnx.List(
            Block(config, layer, rngs=rngs) for layer in range(config.num_layers)
        )
        _share_attentions(list(self.blocks), config)
        self.norm: Any = nnx.data(None)
        if config.norm == "pre":
            self.norm = make_norm(config, rngs)

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        token_types: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Token ids [B, L], or features [B, L, F], to vectors [B, L, D] and their mask.

        Args:
          inputs: 1 ≤ L ≤ max_length. Where the mask is False they may be anything, also
            ids outside the vocabulary or NaN, and so may token_types. Elsewhere the
            vector of an id outside, as −1 is, becomes NaN.
          mask: [B, L] bool, True = a token, False = padding; None = all are tokens.
          dropout_rng: a key, or None for no dropout.
          token_types: [B, L] ids; None = as the separators say, and 0 for features or
            without a separator.

        Returns:
          [B, L, D] in dtype and its mask [B, L] or None (L + 1 with a CLS token).

        Raises:
          ValueError: if inputs, mask or token_types have a different shape, ids are no
            integers, the mask is not boolean, or the encoder has no token types to add.
        """
        _check_inputs(
            inputs,
            mask,
            token_types,
            input_dim=self.input_dim,
            max_length=self.max_length,
            has_token_types=self.token_types is not None,
        )
        if self.ignore_id is not None:
            is_token = ~_has_id(inputs, self.ignore_id)
            mask = is_token if mask is None else mask & is_token
        rngs = split_rng(dropout_rng, 1 + len(self.blocks))

        x = self._embed(inputs, token_types, mask)
        if self.cls is not None:
            cls = jnp.broadcast_to(self.cls[...], (x.shape[0], 1, x.shape[-1]))
            x = jnp.concatenate([cls, x], axis=1)
            if mask is not None:
                mask = jnp.pad(mask, ((0, 0), (1, 0)), constant_values=True)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = dropout(x.astype(self.dtype), self.dropout_rate, rngs[0])

        call = call_with_remat if self.remat == "block" else Block.__call__
        for block, rng in zip(self.blocks, rngs[1:], strict=True):
            x = call(block, x, mask, rng)
        if self.norm is not None:
            x = self.norm(x)
        return x, mask

    def _embed(
        self,
        inputs: jax.Array,
        token_types: jax.Array | None,
        mask: jax.Array | None,
    ) -> jax.Array:
        """The sum of the embeddings of inputs, positions and types, [B, L, D]."""
        # An id outside the table is embedded as NaN, which would reach the gradient
        # from padding as well.
        x = self.embedding(zero_masked(inputs, mask))
        if self.positions is not None:
            # As an outer product, so that the gradient of positions is a product, too.
            rows = self.positions[: inputs.shape[1]]
            ones = jnp.ones_like(rows, shape=inputs.shape[:1])
            x = x + jnp.einsum("b,ld->bld", ones, rows, precision="highest")
        if self.token_types is None:
            return x
        if token_types is None:
            token_types = self._types_by_separators(inputs, mask)
        return x + take_rows(self.token_types[...], zero_masked(token_types, mask))

    def _types_by_separators(
        self, inputs: jax.Array, mask: jax.Array | None
    ) -> jax.Array:
        """Type 0 up to the first separator and 1 after it, int [B, L]."""
        if self.separator is None:
            return jnp.zeros(inputs.shape[:2], jnp.int32)
        is_separator = _has_id(inputs, self.separator)
        if mask is not None:
            is_separator &= mask
        num_separators = jax.vmap(ranks)(is_separator)
        num_separators_before = num_separators - is_separator.astype(jnp.int32)
        last_type = min(1, self.token_types.shape[0] - 1)  # RoBERTa has one
        return jnp.minimum(num_separators_before, last_type)


def _has_id(inputs: jax.Array, token_id: int) -> jax.Array:
    """Whether each token has that id, bool [B, L].

    Beside a narrow dtype jax would wrap the id: 300 would be the byte 44.
    """
    return jnp.asarray(inputs, jnp.int32) == token_id


def _check_inputs(
    inputs: jax.Array,
    mask: jax.Array | None,
    token_types: jax.Array | None,
    *,
    input_dim: int | None,
    max_length: int,
    has_token_types: bool,
) -> None:
    """Checks the arrays that an `Encoder` is called with.

    Args:
      inputs, mask, token_types: the arguments of the call.
      input_dim: F of the encoder; None for token ids.
      max_length: the length of the longest input.
      has_token_types: whether the encoder has embeddings of token types.

    Raises:
      ValueError: as `Encoder.__call__` says.
    """
    check_arrays(inputs=inputs, mask=mask, token_types=token_types)
    has_features = inputs.ndim == 3 and inputs.shape[2] == input_dim
    if input_dim is not None and not has_features:
        raise ValueError(
            f"inputs must be [B, L, F] with F = {input_dim}, the input_dim of the "
            f"config, got {inputs.shape}"
        )
    if input_dim is None and inputs.ndim != 2:
        raise ValueError(
            f"inputs must be token ids [B, L], got {inputs.shape}: for feature vectors "
            "give the config an input_dim"
        )
    length = inputs.shape[1]
    if length == 0:
        raise ValueError(f"inputs must have at least one token, got {inputs.shape}")
    if length > max_length:
        raise ValueError(f"length {length} is over max_length {max_length}")
    if mask is not None and mask.shape != inputs.shape[:2]:
        raise ValueError(
            f"mask must be [B, L], here {inputs.shape[:2]}, got {mask.shape}"
        )
    if mask is not None and mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask must be boolean (True = a token), got {mask.dtype}: pass "
            "mask.astype(bool)"
        )
    if token_types is not None and not has_token_types:
        raise ValueError(
            "token_types are given, but the config has num_token_types=0: set it to "
            "the number of types"
        )
    if token_types is not None and token_types.shape != inputs.shape[:2]:
        raise ValueError(
            f"token_types must be [B, L], here {inputs.shape[:2]}, got "
            f"{token_types.shape}"
        )


def check_arrays(**arrays: Any) -> None:
    """Raises ValueError for an argument that is neither an array nor None."""
    for name, array in arrays.items():
        if array is not None and not hasattr(array, "shape"):
            raise ValueError(
                f"{name} must be an array, got a {type(array).__name__}: pass "
                f"jnp.array({name})"
            )
