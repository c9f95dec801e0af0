"""Heads: pooling, classifiers of one sequence or two, masked tokens."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from nystromformer.encoder import Encoder
from nystromformer.encoder_config import EncoderConfig, kernel_init
from nystromformer.ops import at_least_float32, dropout, einsum, split_rng, zeroed
from nystromformer.streams import HEAD_DROPOUT
from nystromformer.validation import check_choice

POOLINGS = ("mean", "padded_mean", "max", "last", "cls_token")


def pool_mean(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The mean over valid tokens: x [B, L, D], mask [B, L] -> float32 [B, D]."""
    if mask is None:
        return x.mean(1, dtype=jnp.float32)
    total = zeroed(x, mask).sum(1, dtype=jnp.float32)
    num_valid = jnp.maximum(mask.sum(1, dtype=jnp.float32), 1)
    return total / num_valid[:, None]


def pool_max(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The maximum over valid tokens, 0 of none: as `pool_mean`."""
    x = x.astype(jnp.float32)
    if mask is None:
        return x.max(1)
    largest = jnp.where(mask[:, :, None], x, jnp.finfo(jnp.float32).min).max(1)
    return jnp.where(mask.any(1)[:, None], largest, 0)


def pool_last(x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
    """The vector of the last valid token, 0 of none: as `pool_mean`."""
    x = x.astype(jnp.float32)
    if mask is None:
        return x[:, -1]
    last = jnp.maximum(mask.sum(1) - 1, 0)
    return jnp.take_along_axis(zeroed(x, mask), last[:, None, None], axis=1)[:, 0]


def linear(*sizes: int, rngs: nnx.Rngs) -> nnx.Linear:
    """A linear layer in float32."""
    return nnx.Linear(*sizes, kernel_init=kernel_init, rngs=rngs)


class Head(nnx.Module):
    """Linear, ReLU, Linear, in float32."""

    def __init__(
        self, in_features: int, hidden: int, num_classes: int, *, rngs: nnx.Rngs
    ):
        self.hidden = linear(in_features, hidden, rngs=rngs)
        self.out = linear(hidden, num_classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, features] -> [B, C]."""
        return self.out(jax.nn.relu(self.hidden(x)))


class Model(nnx.Module):
    """An encoder, and `read`, which makes logits of its vectors."""

    num_inputs = 1  # sequences of an example
    encoder: Encoder

    def __call__(
        self,
        inputs: jax.Array,
        mask: jax.Array | None = None,
        dropout_rng: jax.Array | None = None,
        token_types: jax.Array | None = None,
    ) -> jax.Array:
        """The logits [B, C], or [B, L, C] of each token, in at least float32.

        The arguments are an encoder's; those of pairs are [B, 2, L] or [B, 2, L, F].
        """
        if self.num_inputs == 2:
            if inputs.ndim < 3 or inputs.shape[1] != 2:
                raise ValueError(
                    f"inputs must be [B, 2, L] or [B, 2, L, F], got {inputs.shape}"
                )
            if mask is not None and mask.shape != inputs.shape[:3]:
                raise ValueError(
                    f"mask must be [B, 2, L], here {inputs.shape[:3]}, got {mask.shape}"
                )
            inputs, mask, token_types = jax.tree.map(
                lambda x: x.reshape(-1, *x.shape[2:]), (inputs, mask, token_types)
            )
        x, mask = self.encoder(inputs, mask, dropout_rng, token_types)
        return self.read(x, mask, dropout_rng)

    def read(self, x, mask, dropout_rng) -> jax.Array:
        """The logits of the encoder's vectors [B, L, D] with mask [B, L]."""
        raise NotImplementedError


class SequenceClassifier(Model):
    """One sequence, one class.

    `pooling` is "mean" or "max" over the valid tokens; "padded_mean", as published
    their sum by the config's max_length; "last", the last valid token; or "cls_token",
    a learned vector in front.
    """

    features = 1  # vectors that the head sees

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        pooling: str = "mean",
        rngs: nnx.Rngs,
    ):
        check_choice("pooling", pooling, POOLINGS)
        if config.cls_token and pooling != "cls_token":
            raise ValueError('cls_token=True needs pooling="cls_token"')
        self.pooling = pooling
        self.max_length = config.max_length
        config = dataclasses.replace(config, cls_token=pooling == "cls_token")
        self.encoder = Encoder(config, rngs=rngs)
        features = self.features * config.model_dim
        self.head = Head(features, config.mlp_dim, num_classes, rngs=rngs)

    def pool(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        """x [B, L, D], mask [B, L] -> float32 [B, D]."""
        if self.pooling == "cls_token":
            return x[:, 0].astype(jnp.float32)
        if self.pooling == "padded_mean":
            return zeroed(x, mask).sum(1, dtype=jnp.float32) / self.max_length
        if self.pooling == "last":
            return pool_last(x, mask)
        return pool_max(x, mask) if self.pooling == "max" else pool_mean(x, mask)

    def read(self, x, mask, dropout_rng):
        return self.head(self.pool(x, mask))


class PairClassifier(SequenceClassifier):
    """Two sequences, one class: one encoder, a head on [x₀, x₁, x₀·x₁, x₀ − x₁]."""

    num_inputs = 2
    features = 4

    def read(self, x, mask, dropout_rng):
        pooled = self.pool(x, mask).reshape(-1, 2, x.shape[-1])
        x0, x1 = pooled[:, 0], pooled[:, 1]
        return self.head(jnp.concatenate([x0, x1, x0 * x1, x0 - x1], axis=-1))


class TokenClassifier(Model):
    """A class for each token, by a linear layer in float32, as in BERT.

    A hidden layer of ReLU, as `Head` has, may die before the vectors of a sequence
    differ much: then nothing is learnt.
    """

    def __init__(self, config: EncoderConfig, *, num_classes: int, rngs: nnx.Rngs):
        self.encoder = Encoder(config, rngs=rngs)
        self.out = linear(config.model_dim, num_classes, rngs=rngs)

    def read(self, x, mask, dropout_rng):
        return self.out(x)


class TokenDecoder(Model):
    """`decode`, for a token at each position: Linear, GELU, LayerNorm, the embedding.

    The decoder has a bias of its own, as in BERT and the published Nyströmformer.
    """

    def add_decoder(self, config: EncoderConfig, rngs: nnx.Rngs) -> None:
        """Makes the decoder's parameters, behind those of the encoder."""
        width = config.model_dim
        self.transform = config.dense(width, width, rngs)
        self.norm = config.norm_layer(rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))
        self.approximate = config.gelu == "tanh"

    def decode(self, x: jax.Array) -> jax.Array:
        """The encoder's vectors [..., D] -> logits [..., V] in at least float32."""
        hidden = jax.nn.gelu(self.transform(x), approximate=self.approximate)
        embedding = self.encoder.embedding.embedding[...].astype(x.dtype)
        logits = einsum("...d,vd->...v", self.norm(hidden), embedding)
        return logits + jnp.broadcast_to(self.bias[...], logits.shape)


class DenoisingClassifier(TokenDecoder, SequenceClassifier):
    """A classifier of one sequence that can also tell hidden tokens."""

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        pooling: str = "mean",
        rngs: nnx.Rngs,
    ):
        super().__init__(config, num_classes=num_classes, pooling=pooling, rngs=rngs)
        self.add_decoder(config, rngs)


class DenoisingPairClassifier(DenoisingClassifier, PairClassifier):
    """A classifier of two sequences that can also tell hidden tokens."""


class MaskedLanguageModel(TokenDecoder):
    """A token for each position."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = Encoder(config, rngs=rngs)
        self.add_decoder(config, rngs)

    def read(self, x, mask, dropout_rng):
        return self.decode(x)


class MaskedOrderModel(MaskedLanguageModel):
    """Masked tokens, and the order of two parts from the first vector, as in BERT."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        width = config.model_dim
        self.pooler = linear(width, width, rngs=rngs)
        self.ordered = linear(width, 2, rngs=rngs)

    def order(self, x: jax.Array) -> jax.Array:
        """The encoder's vectors [B, L, D] -> logits [B, 2] in at least float32."""
        first = x[:, 0].astype(at_least_float32(x.dtype))
        return self.ordered(jnp.tanh(self.pooler(first)))


class FirstTokenClassifier(Model):
    """The class of one sequence or pair between special tokens, read from the first.

    Dropout, Linear, activation, dropout, Linear on [CLS], in at least float32. The
    activation is "gelu", as in the published Nyströmformer, or "tanh", BERT's pooler.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        num_classes: int,
        activation: str = "gelu",
        rngs: nnx.Rngs,
    ):
        self.encoder = Encoder(config, rngs=rngs)
        width = config.model_dim
        self.pooler = linear(width, width, rngs=rngs)
        self.out = linear(width, num_classes, rngs=rngs)
        self.activation = activation
        self.approximate = config.gelu == "tanh"
        self.dropout_rate = config.dropout_rate

    def read(self, x, mask, dropout_rng):
        if dropout_rng is not None:  # other keys than the encoder's
            dropout_rng = jax.random.fold_in(dropout_rng, HEAD_DROPOUT)
        rngs = split_rng(dropout_rng, 2)
        x = x[:, 0].astype(at_least_float32(x.dtype))
        x = self.pooler(dropout(x, self.dropout_rate, rngs[0]))
        is_tanh = self.activation == "tanh"
        x = jnp.tanh(x) if is_tanh else jax.nn.gelu(x, approximate=self.approximate)
        return self.out(dropout(x, self.dropout_rate, rngs[1]))
