"""The encoder with a pluggable attention: pre-LN as on the LRA, post-LN as in BERT.

Masks and random keys are passed at call time. A model is a plain tree of arrays: its
parameters, and what attentions have drawn with them (Performer's projection, the keys
of BigBird's blocks and of Reformer's hashes). Dropout is on where a
`dropout_rng` is given, and only there: flax's `model.train()` has no key to give, so
that after it a call without one is an error. Gradients are in reverse mode: `jax.jvp`,
`jax.jacfwd` and `jax.hessian` raise TypeError. The Hessian times a vector is `jax.grad`
of the gradient's product with it.

Letters: B batch, L length, D model dim, F features of an input.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.attention import find_attention
from nystromformer.dropout import dropout, split_rng
from nystromformer.encoder_config import EncoderConfig
from nystromformer.layers import (
    Block,
    Embedding,
    call_with_remat,
    make_dense,
    make_norm,
)
from nystromformer.ops import at_least_float32, ranks, take_rows, zero_masked

embedding_init = nnx.initializers.normal(0.02)


def _make_embedding_table(*shape: int, rngs: nnx.Rngs) -> nnx.Param:
    return nnx.Param(embedding_init(rngs.params(), shape))


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


def check_arrays(**arrays: Any) -> None:
    """Raises ValueError for an argument that is neither an array nor None."""
    for name, array in arrays.items():
        if array is not None and not hasattr(array, "shape"):
            raise ValueError(
                f"{name} must be an array, got a {type(array).__name__}: pass "
                f"jnp.array({name})"
            )


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
            Block(config.of_layer(layer), rngs=rngs)
            for layer in range(config.num_layers)
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
        check_arrays(inputs=inputs, mask=mask, token_types=token_types)
        self._check_shapes(inputs, mask)
        self._check_token_types(token_types, inputs)
        if self.ignore_id is not None:
            is_token = inputs != self.ignore_id
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

    def _check_shapes(self, inputs: jax.Array, mask: jax.Array | None) -> None:
        has_features = inputs.ndim == 3 and inputs.shape[2] == self.input_dim
        if self.input_dim is not None and not has_features:
            raise ValueError(
                f"inputs must be [B, L, F] with F = {self.input_dim}, the input_dim of "
                f"the config, got {inputs.shape}"
            )
        if self.input_dim is None and inputs.ndim != 2:
            raise ValueError(
                f"inputs must be token ids [B, L], got {inputs.shape}: for feature "
                "vectors give the config an input_dim"
            )
        length = inputs.shape[1]
        if length == 0:
            raise ValueError(f"inputs must have at least one token, got {inputs.shape}")
        if length > self.max_length:
            raise ValueError(f"length {length} is over max_length {self.max_length}")
        if mask is not None and mask.shape != inputs.shape[:2]:
            raise ValueError(
                f"mask must be [B, L], here {inputs.shape[:2]}, got {mask.shape}"
            )
        if mask is not None and mask.dtype != jnp.bool_:
            raise ValueError(
                f"mask must be boolean (True = a token), got {mask.dtype}: pass "
                "mask.astype(bool)"
            )

    def _check_token_types(
        self, token_types: jax.Array | None, inputs: jax.Array
    ) -> None:
        if token_types is None:
            return
        if self.token_types is None:
            raise ValueError(
                "token_types are given, but the config has num_token_types=0: set it "
                "to the number of types"
            )
        if token_types.shape != inputs.shape[:2]:
            raise ValueError(
                f"token_types must be [B, L], here {inputs.shape[:2]}, got "
                f"{token_types.shape}"
            )

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
        is_separator = inputs == self.separator
        if mask is not None:
            is_separator &= mask
        num_separators = jax.vmap(ranks)(is_separator)
        num_separators_before = num_separators - is_separator.astype(jnp.int32)
        last_type = min(1, self.token_types.shape[0] - 1)  # RoBERTa has one
        return jnp.minimum(num_separators_before, last_type)
